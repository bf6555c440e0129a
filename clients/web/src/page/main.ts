/** The caption page: puts the recorder behind the controls. */

import "./style.css";
import { FORMATS, MEDIA_TYPES, render, type Format } from "../core";
import { CaptionsView, clock } from "./captions";
import { KeyPrompt, needsKey } from "./key";
import { CAPTURE_HINTS, Notices } from "./notices";
import { Recorder, type Phase } from "./recorder";
import { applyAppearance } from "./appearance";
import { WakeLock } from "./wake-lock";

function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const ui = {
  status: byId("status"),
  lag: byId("lag"),
  empty: byId("empty"),
  scroller: byId("scroller"),
  latest: byId<HTMLButtonElement>("latest"),
  level: byId("level"),
  start: byId<HTMLButtonElement>("start"),
  pause: byId<HTMLButtonElement>("pause"),
  stop: byId<HTMLButtonElement>("stop"),
  elapsed: byId("elapsed"),
  downloads: byId<HTMLDetailsElement>("downloads"),
  clear: byId<HTMLButtonElement>("clear"),
};

const captions = new CaptionsView(byId("finals"), byId("live"));
const wakeLock = new WakeLock();
const keyPrompt = new KeyPrompt(byId<HTMLDialogElement>("key-dialog"));
const url = new URL("v1/realtime", document.baseURI);
url.protocol = url.protocol.replace("http", "ws");
url.search = url.hash = "";

/** This near the end of the captions counts as being there. */
const END_PX = 60;

let isDrawing = false;
let peak = 0;
/** Whether the newest captions are kept in view; scrolling up ends it. */
let follows = true;

const notices = new Notices(byId("notices"));

const recorder = new Recorder({
  url: url.href,
  preset: new URLSearchParams(location.search).get("preset") ?? "captions",
  notices,
  onChange: redraw,
  onLevel: (newest) => {
    peak = newest;
    redraw();
  },
  onRefused: () => void askForKey(),
});

/** Draw at most once a frame, however many events come. */
function redraw(): void {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    draw();
  });
}

function draw(): void {
  const { phase, store } = recorder;
  captions.update(store);
  if (follows) scrollToEnd();
  ui.latest.hidden = follows;
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
  ui.downloads.classList.toggle("disabled", isEmpty);
  if (isEmpty) ui.downloads.open = false;
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
  const { phase, link, wasLive, lag_ms, isDegraded } = recorder;
  const isAway = link === "waiting" || link === "connecting";
  const hasStarted = phase === "recording" || phase === "stopping";
  const [tone, text] = hasStarted && isAway ? ["away", wasLive ? "Reconnecting" : "Connecting"] : PHASES[phase];
  // Only changes are written: a screen reader speaks each one.
  if (ui.status.textContent !== text) ui.status.textContent = text;
  ui.status.dataset["tone"] = tone;
  ui.lag.hidden = !hasStarted || (lag_ms === null && !isAway);
  ui.lag.textContent = isAway
    ? `${recorder.backlog_s.toFixed(0)} s kept`
    : `Lag ${((lag_ms ?? 0) / 1000).toFixed(1)} s${isDegraded ? ", server busy" : ""}`;
}

/** A peak on a scale of 60 dB, 0 to 1. */
function loudness(value: number): number {
  return value > 0 ? Math.max(0, 1 + Math.log10(value) / 3) : 0;
}

function scrollToEnd(): void {
  ui.scroller.scrollTop = ui.scroller.scrollHeight;
}

async function askForKey(): Promise<void> {
  if (await needsKey(keyPrompt.key)) keyPrompt.open();
}

function download(format: Format): void {
  const content = render(recorder.store.segments, format);
  const address = URL.createObjectURL(new Blob([content], { type: MEDIA_TYPES[format] }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `captions-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}.${format}`;
  link.click();
  URL.revokeObjectURL(address);
  ui.downloads.open = false;
}

ui.start.addEventListener("click", () => void recorder.start(keyPrompt.key));
ui.pause.addEventListener("click", () => void (recorder.phase === "paused" ? recorder.resume() : recorder.pause()));
ui.stop.addEventListener("click", () => void recorder.stop());
ui.clear.addEventListener("click", () => recorder.clear());
ui.latest.addEventListener("click", () => {
  follows = true;
  redraw();
});
ui.scroller.addEventListener("scroll", () => {
  const { scrollHeight, scrollTop, clientHeight } = ui.scroller;
  follows = scrollHeight - scrollTop - clientHeight < END_PX;
  ui.latest.hidden = follows;
});
const sizes = new ResizeObserver(redraw);
sizes.observe(ui.scroller);
sizes.observe(byId("finals"));
for (const format of FORMATS) {
  document.querySelector(`[data-format=${format}]`)?.addEventListener("click", () => download(format));
}
document.addEventListener("click", ({ target }) => {
  if (!ui.downloads.contains(target as Node)) ui.downloads.open = false;
});
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") ui.downloads.open = false;
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") recorder.nudge();
});
window.addEventListener("online", () => recorder.nudge());
window.addEventListener("beforeunload", (event) => {
  if (recorder.phase !== "off") event.preventDefault();
});

applyAppearance(byId<HTMLButtonElement>("theme"), byId<HTMLButtonElement>("smaller"), byId<HTMLButtonElement>("larger"));
if (!window.isSecureContext) notices.show("capture", CAPTURE_HINTS.insecure);
void askForKey();
draw();
