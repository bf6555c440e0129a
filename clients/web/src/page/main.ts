/** The caption page: puts the recorder behind the controls. */

import "./style.css";
import { applyAppearance } from "./appearance";
import { CaptionsView, clock } from "./captions";
import { byId, oncePerFrame, socketAddress } from "./dom";
import { Downloads } from "./downloads";
import { Follow } from "./follow";
import { access, KeyPrompt } from "./key";
import { CAPTURE_HINTS, Notices } from "./notices";
import { Recorder, type Phase } from "./recorder";
import { installShell } from "./shell";
import { WakeLock } from "./wake-lock";

const ui = {
  status: byId("status"),
  lag: byId("lag"),
  empty: byId("empty"),
  level: byId("level"),
  start: byId<HTMLButtonElement>("start"),
  pause: byId<HTMLButtonElement>("pause"),
  stop: byId<HTMLButtonElement>("stop"),
  elapsed: byId("elapsed"),
  clear: byId<HTMLButtonElement>("clear"),
};

/** Parameters of the page that are handed on to the session; `room` speaks into a captions room. */
const HANDED_ON = ["preset", "room", "participant", "shared"];
const address = new URLSearchParams(location.search);
const room = address.get("room") ?? "";

const captions = new CaptionsView(byId("finals"), byId("live"));
const follow = new Follow(byId("scroller"), byId("finals"), byId("latest"));
const wakeLock = new WakeLock();
const keyPrompt = new KeyPrompt(byId<HTMLDialogElement>("key-dialog"), room);
const notices = new Notices(byId("notices"));
const redraw = oncePerFrame(draw);
let peak = 0;

const recorder = new Recorder({
  url: socketAddress("v1/realtime"),
  query: { preset: "captions", ...Object.fromEntries([...address].filter(([name]) => HANDED_ON.includes(name))) },
  notices,
  onChange: redraw,
  onLevel: (newest) => {
    peak = newest;
    redraw();
  },
  onRefused: () => void askForKey(),
});
const downloads = new Downloads(byId<HTMLDetailsElement>("downloads"), () => recorder.store.segments);

function draw(): void {
  const { phase, store } = recorder;
  captions.update(store);
  follow.update();
  const isEmpty = store.segments.length === 0;
  ui.empty.hidden = !isEmpty || store.live.length > 0;
  drawStatus();
  ui.start.hidden = phase !== "off" && phase !== "starting";
  ui.start.disabled = phase === "starting";
  ui.pause.hidden = phase !== "recording" && phase !== "paused";
  ui.pause.textContent = phase === "paused" ? "Resume" : "Pause";
  ui.stop.hidden = phase === "off" || phase === "starting";
  ui.stop.textContent = phase === "stopping" ? "Stop now" : "Stop";
  ui.elapsed.textContent = clock(recorder.elapsed_s);
  downloads.enable(!isEmpty);
  ui.clear.hidden = isEmpty || phase !== "off";
  ui.level.style.transform = `scaleX(${loudness(peak)})`;
  wakeLock.want(phase === "recording");
}

const PHASES: Record<Phase, [tone: string, text: string]> = {
  off: ["idle", "Ready"],
  starting: ["busy", "Starting"],
  recording: ["live", "Listening"],
  paused: ["idle", "Paused"],
  stopping: ["busy", "Finishing"],
};

function drawStatus(): void {
  const { phase, link, lag_ms, isDegraded } = recorder;
  const isAway = link === "waiting" || link === "connecting";
  const hasStarted = phase === "recording" || phase === "stopping";
  const [tone, text] = status(hasStarted && isAway);
  // Only changes are written: a screen reader speaks each one.
  if (ui.status.textContent !== text) ui.status.textContent = text;
  ui.status.dataset["tone"] = tone;
  ui.lag.hidden = !hasStarted || (lag_ms === null && !isAway);
  ui.lag.textContent = isAway
    ? `${recorder.backlog_s.toFixed(0)} s kept`
    : `Lag ${((lag_ms ?? 0) / 1000).toFixed(1)} s${isDegraded ? ", server busy" : ""}`;
}

function status(isAway: boolean): [tone: string, text: string] {
  if (recorder.trouble) return ["away", "Not hearing"];
  if (isAway) return ["away", recorder.wasLive ? "Reconnecting" : "Connecting"];
  return PHASES[recorder.phase];
}

/** A peak on a scale of 60 dB, 0 to 1. */
function loudness(value: number): number {
  return value > 0 ? Math.max(0, 1 + Math.log10(value) / 3) : 0;
}

async function askForKey(): Promise<void> {
  const path = room ? `v1/rooms/${encodeURIComponent(room)}` : "v1/models";
  const answer = await access(path, keyPrompt.key);
  if (answer === "locked") keyPrompt.open();
  if (answer === "missing" && room) {
    notices.show("room", { tone: "error", title: "There is no such room.", text: "It may have been deleted." });
  }
}

ui.start.addEventListener("click", () => void recorder.start(keyPrompt.key));
ui.pause.addEventListener("click", () => void (recorder.phase === "paused" ? recorder.resume() : recorder.pause()));
ui.stop.addEventListener("click", () => void recorder.stop());
ui.clear.addEventListener("click", () => recorder.clear());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") recorder.nudge();
});
for (const change of ["online", "offline"]) window.addEventListener(change, () => recorder.networkChanged());
window.addEventListener("beforeunload", (event) => {
  if (recorder.phase !== "off") event.preventDefault();
});

applyAppearance(byId<HTMLButtonElement>("theme"), byId<HTMLButtonElement>("smaller"), byId<HTMLButtonElement>("larger"));
if (!window.isSecureContext) notices.show("capture", CAPTURE_HINTS.insecure);
installShell();
void askForKey();
draw();
