/** The room page: captions of a whole meeting, as its viewers read them. */

import "./style.css";
import "./room.css";
import { RoomConnection, RoomStore, type RoomClientEvent, type RoomConnectionState } from "../core";
import { applyAppearance } from "./appearance";
import { CaptionsView, nameOf } from "./captions";
import { byId, oncePerFrame, socketAddress } from "./dom";
import { Downloads } from "./downloads";
import { Follow } from "./follow";
import { access, KeyPrompt } from "./key";
import { NamePrompt } from "./names";
import { Notices } from "./notices";
import { installShell } from "./shell";
import { WakeLock } from "./wake-lock";

const ui = {
  title: byId("title"),
  status: byId("status"),
  empty: byId("empty"),
  large: byId<HTMLButtonElement>("large"),
  link: byId<HTMLButtonElement>("link"),
};

const room = new URLSearchParams(location.search).get("room") ?? "";
const path = `v1/rooms/${encodeURIComponent(room)}`;
const store = new RoomStore();
const notices = new Notices(byId("notices"));
const wakeLock = new WakeLock();
const keyPrompt = new KeyPrompt(byId<HTMLDialogElement>("key-dialog"), room, () => void begin());
const namePrompt = new NamePrompt({
  dialog: byId<HTMLDialogElement>("name-dialog"),
  path,
  key: () => keyPrompt.key,
  onFailed: (message) => notices.show("name", { tone: "error", title: "The speaker was not changed.", text: message }),
});
const captions = new CaptionsView(byId("finals"), byId("live"), {
  nameOf: shownName,
  // Only who may speak in the room may name its speakers.
  get onName() {
    return store.role === "view" ? undefined : rename;
  },
});
const follow = new Follow(byId("scroller"), byId("finals"), byId("latest"));
const downloads = new Downloads(byId<HTMLDetailsElement>("downloads"), () => store.named());
const redraw = oncePerFrame(draw);

let connection: RoomConnection | null = null;
let link: RoomConnectionState = "connecting";
let wasLive = false;

const STATES: Record<RoomConnectionState, [tone: string, text: string]> = {
  connecting: ["busy", "Connecting"],
  live: ["live", "Live"],
  waiting: ["away", "Reconnecting"],
  closed: ["idle", "Closed"],
};

function draw(): void {
  captions.update(store);
  follow.update();
  const title = store.title || "Room";
  ui.title.textContent = title;
  document.title = `${title} · moss-stream`;
  const isEmpty = store.segments.length === 0;
  ui.empty.hidden = !isEmpty || store.live.length > 0;
  downloads.enable(!isEmpty);
  ui.link.hidden = store.role !== "view" || !wasLive || !navigator.clipboard;
  const [tone, text] = STATES[link];
  if (ui.status.textContent !== text) ui.status.textContent = text;
  ui.status.dataset["tone"] = tone;
  wakeLock.want(link !== "closed");
}

function shownName(speaker: string): string {
  return nameOf(store.nameOf(speaker));
}

function rename(speaker: string): void {
  const others = store.speakers.filter((other) => other !== speaker);
  const choices = others.map((other) => ({ speaker: other, name: shownName(other) }));
  namePrompt.open(speaker, store.nameOf(speaker), choices);
}

/** Look whether the room lets us in: a socket that is refused does not say why. */
async function begin(): Promise<void> {
  connection?.close();
  connection = null;
  const answer = room ? await access(path, keyPrompt.key) : "missing";
  if (answer === "locked") return keyPrompt.open();
  if (answer === "missing") {
    link = "closed";
    redraw();
    const text = room ? "It may have been deleted." : "The link has to name one: room.html?room=ROOM";
    return notices.show("end", { tone: "error", title: "There is no such room.", text });
  }
  const key = keyPrompt.key;
  connection = new RoomConnection({
    url: socketAddress(`v1/captions/${encodeURIComponent(room)}`),
    ...(key ? { key } : {}),
    onEvent,
  });
  connection.start();
}

function onEvent(event: RoomClientEvent): void {
  switch (event.kind) {
    case "state":
      // A silent room is asked anew now and then, which is nobody's business until it fails.
      if (event.state !== "connecting" || !wasLive) link = event.state;
      wasLive ||= event.state === "live";
      if (event.state === "waiting") void recheck();
      break;
    case "room":
      store.apply(event.event);
      if (event.event.type === "room.warning") {
        notices.show("warning", { tone: "warning", title: "The server reports:", text: event.event.message });
      }
      break;
    case "ended":
      notices.show("end", { tone: "warning", title: "The room has ended.", text: event.reason });
  }
  redraw();
}

/** It may be that the network is away, that the token is wrong, or that the room was deleted. */
async function recheck(): Promise<void> {
  const answer = await access(path, keyPrompt.key);
  if (answer === "locked" || answer === "missing") await begin();
}

/** Text that is read across a room: nothing else on the screen. */
function setLarge(isLarge: boolean): void {
  document.body.classList.toggle("large", isLarge);
  ui.large.setAttribute("aria-pressed", String(isLarge));
  ui.large.textContent = isLarge ? "Usual text" : "Large text";
  // Refused on phones that know no such thing: then the page is as large as it gets.
  if (isLarge) document.documentElement.requestFullscreen?.().catch(() => {});
  else if (document.fullscreenElement) void document.exitFullscreen();
  follow.update();
}

async function copyLink(): Promise<void> {
  const address = new URL(location.href);
  address.searchParams.set("token", keyPrompt.key);
  await navigator.clipboard.writeText(address.href);
  notices.show("link", { tone: "info", title: "The link is copied.", text: "Who has it can read this room." });
}

ui.large.addEventListener("click", () => setLarge(!document.body.classList.contains("large")));
ui.link.addEventListener("click", () => void copyLink());
document.addEventListener("fullscreenchange", () => {
  if (!document.fullscreenElement) setLarge(false);
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") connection?.retryNow();
});
for (const change of ["online", "offline"]) window.addEventListener(change, () => connection?.networkChanged());

applyAppearance(byId<HTMLButtonElement>("theme"), byId<HTMLButtonElement>("smaller"), byId<HTMLButtonElement>("larger"));
installShell();
draw();
void begin();
