/**
 * One page's recording: microphone, connection and transcript together.
 *
 * Phases: `off` -> `starting` -> `recording` <-> `paused` -> `stopping` -> `off`. A later recording
 * goes on in the same transcript, its times after those of the one before.
 */

import { Connection, TranscriptStore, type ClientEvent, type ConnectionState, type PcmRate, type ServerEvent } from "../core";
import { Capture, CaptureError, type CaptureBlock } from "./capture";
import { clock } from "./captions";
import { Microphone, type Trouble } from "./microphone";
import { CAPTURE_HINTS, TROUBLE_HINTS, type Notices } from "./notices";

export type Phase = "off" | "starting" | "recording" | "paused" | "stopping";

export interface RecorderOptions {
  /** Address of `/v1/realtime`. */
  url: string;
  /** Parameters of the session, such as its preset. */
  query: Record<string, string>;
  notices: Notices;
  /** Anything that is shown has changed. */
  onChange: () => void;
  /** Loudest sample of the newest block, 0 to 1. */
  onLevel: (peak: number) => void;
  /** The server may want a key. */
  onRefused: () => void;
}

/** Below this the microphone is off rather than the room quiet. */
const SILENT_PEAK = 1e-4;
const SILENT_S = 5;

export class Recorder {
  store = new TranscriptStore();
  phase: Phase = "off";
  link: ConnectionState = "idle";
  /** Whether this recording has reached the server before. */
  wasLive = false;
  /** Audio received by the server and not yet in the captions; `null` before it said. */
  lag_ms: number | null = null;
  isDegraded = false;
  readonly #options: RecorderOptions;
  #microphone: Microphone | null = null;
  #connection: Connection | null = null;
  #rate_hz: PcmRate | null = null;
  #numSamples = 0;
  /** Where this recording starts in the transcript, in seconds. */
  #base_s = 0;
  #silent_s = 0;

  constructor(options: RecorderOptions) {
    this.#options = options;
  }

  get elapsed_s(): number {
    return this.#base_s + (this.#rate_hz ? this.#numSamples / this.#rate_hz : 0);
  }

  /** Audio that waits for the server, in seconds. */
  get backlog_s(): number {
    return this.#connection?.backlog_s ?? 0;
  }

  /** Why nothing is heard at the moment. */
  get trouble(): Trouble | null {
    return this.#microphone?.trouble ?? null;
  }

  /** Start, with the server's key if it needs one. Call it from a gesture of the user. */
  async start(key: string): Promise<void> {
    if (this.phase !== "off") return;
    this.#options.notices.clearAll();
    this.#base_s = this.elapsed_s;
    this.#numSamples = 0;
    this.#rate_hz = null;
    this.wasLive = false;
    this.#setPhase("starting");
    this.#rate_hz = await this.#openMicrophone();
    if (!this.#rate_hz) return this.#setPhase("off");
    this.#connection = new Connection({
      url: this.#options.url,
      rate_hz: this.#rate_hz,
      query: this.#options.query,
      ...(key ? { key } : {}),
      onEvent: (event) => this.#onEvent(event),
    });
    this.#setPhase("recording");
    this.#connection.start();
  }

  async pause(): Promise<void> {
    if (this.phase !== "recording") return;
    this.#setPhase("paused");
    await this.#microphone?.pause();
  }

  async resume(): Promise<void> {
    if (this.phase !== "paused") return;
    this.#setPhase("recording");
    await this.#microphone?.resume();
  }

  /** Wait for the last words and close; stopping once more does not wait. */
  async stop(): Promise<void> {
    if (this.phase === "stopping") return this.#connection?.abort();
    if (this.phase !== "recording" && this.phase !== "paused") return;
    this.#setPhase("stopping");
    await this.#closeMicrophone();
    await this.#connection?.finish();
  }

  /** Wake what the browser or the network put to sleep. */
  nudge(): void {
    this.#connection?.retryNow();
    void this.#microphone?.wake();
  }

  /** Another network, none any more, or one again. */
  networkChanged(): void {
    this.#connection?.networkChanged();
  }

  clear(): void {
    this.store = new TranscriptStore();
    if (this.phase === "off") {
      this.#base_s = 0;
      this.#rate_hz = null;
    }
    this.#options.onChange();
  }

  /** Returns its rate in Hz, or `null` and a notice why there is none. */
  async #openMicrophone(): Promise<PcmRate | null> {
    const { notices } = this.#options;
    const microphone = new Microphone({
      open: (events, rate_hz) => Capture.open(events, rate_hz),
      devices: navigator.mediaDevices,
      onBlock: (block) => this.#onBlock(block),
      onTrouble: (trouble) => this.#onTrouble(trouble),
    });
    try {
      const rate_hz = await microphone.open();
      this.#microphone = microphone;
      return rate_hz;
    } catch (error) {
      if (!(error instanceof CaptureError)) throw error;
      notices.show("capture", CAPTURE_HINTS[error.problem]);
      return null;
    }
  }

  async #closeMicrophone(): Promise<void> {
    const microphone = this.#microphone;
    this.#microphone = null;
    this.#options.onLevel(0);
    await microphone?.close();
  }

  #onBlock({ samples, peak }: CaptureBlock): void {
    if (this.phase !== "recording" || !this.#connection || !this.#rate_hz) return;
    this.#numSamples += samples.length;
    this.#connection.send(samples);
    this.#options.onLevel(peak);
    this.#watchSilence(peak, samples.length / this.#rate_hz);
  }

  #watchSilence(peak: number, duration_s: number): void {
    const before_s = this.#silent_s;
    this.#silent_s = peak < SILENT_PEAK ? before_s + duration_s : 0;
    if (before_s < SILENT_S && this.#silent_s >= SILENT_S) {
      this.#options.notices.show("silent", {
        tone: "warning",
        title: "Nothing comes from the microphone.",
        text: "It may be muted, or another one is selected in the settings of the browser or the system.",
      });
    } else if (before_s >= SILENT_S && this.#silent_s === 0) {
      this.#options.notices.clear("silent");
    }
  }

  #onTrouble(trouble: Trouble | null): void {
    const { notices, onChange, onLevel } = this.#options;
    if (trouble) {
      const action = { label: "Try again", run: () => this.nudge() };
      notices.show("trouble", { ...TROUBLE_HINTS[trouble], action });
      onLevel(0);
    } else {
      notices.clear("trouble");
    }
    onChange();
  }

  #onEvent(event: ClientEvent): void {
    switch (event.kind) {
      case "state":
        this.link = event.state;
        this.wasLive ||= event.state === "live";
        break;
      case "server":
        this.store.apply(event.event, event.offset_s + this.#base_s);
        this.#onServer(event.event);
        break;
      case "session_lost":
        this.store.endSession();
        this.#warn("session", "The server began a new session.", "Speakers are numbered anew from here on.");
        break;
      case "audio_lost": {
        const span = `${clock(this.#base_s + event.start_s)} to ${clock(this.#base_s + event.end_s)}`;
        this.#warn("lost", "Some audio is lost.", `The connection was away for too long: ${span} could not be kept.`);
        break;
      }
      case "closed":
        void this.#onClosed(event.reason, event.message);
    }
    this.#options.onChange();
  }

  #onServer(event: ServerEvent): void {
    switch (event.type) {
      case "moss.ack":
        this.lag_ms = event.lag_ms;
        this.isDegraded = event.degraded;
        break;
      case "moss.warning":
        this.#warn(`warning ${event.code}`, "The server reports:", event.message);
        break;
      case "moss.gap":
        this.#warn("gap", "A stretch of audio has no captions:", event.reason);
        break;
      case "conversation.item.input_audio_transcription.failed":
        this.#warn("failed", "Some speech could not be transcribed.", event.error.message);
        break;
      case "error":
        // An expired session is reported as one that is lost.
        if (event.error.code !== "resume_expired") this.#warn("error", "The server reports:", event.error.message);
    }
  }

  async #onClosed(reason: string, message: string): Promise<void> {
    this.#connection = null;
    this.lag_ms = null;
    this.isDegraded = false;
    this.store.endSession();
    await this.#closeMicrophone();
    this.#setPhase("off");
    const ending = ENDINGS[reason];
    if (!ending) return;
    this.#options.notices.show("end", { tone: "error", title: ending, text: message });
    if (reason === "refused" || reason === "unreachable") this.#options.onRefused();
  }

  #warn(matter: string, title: string, text: string): void {
    this.#options.notices.show(matter, { tone: "warning", title, text });
  }

  #setPhase(phase: Phase): void {
    this.phase = phase;
    this.#silent_s = 0;
    if (phase !== "recording") this.#options.onLevel(0);
    this.#options.onChange();
  }
}

const ENDINGS: Partial<Record<string, string>> = {
  incomplete: "The server did not confirm the last words.",
  unreachable: "The server cannot be reached.",
  refused: "The server ended the session.",
  taken_over: "This session goes on in another window.",
};
