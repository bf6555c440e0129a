/**
 * One screen's captions: microphone, connection and transcript together.
 *
 * Phases: `off` -> `starting` -> `listening` <-> `interrupted` -> `stopping` -> `off`. While it is
 * interrupted, by a call or because the microphone does not start, nothing is heard; it goes on by
 * itself when the call is over, and with `wake`.
 */

import {
  Connection,
  TranscriptStore,
  type ClientEvent,
  type ConnectionOptions,
  type ConnectionState,
  type EndReason,
  type PcmRate,
} from "@moss-stream/client";
import { toPcm, type NativeMicrophone } from "./native";

export type Phase = "off" | "starting" | "listening" | "interrupted" | "stopping";

/** Why nothing is heard, or why it ended: `denied` by the user, or as the connection says it. */
export type Problem = "denied" | Exclude<EndReason, "finished" | "aborted">;

export interface LiveCaptionsOptions {
  microphone: NativeMicrophone;
  /** Rate of the microphone in Hz. */
  rate_hz?: PcmRate;
  /** Of the connection, for tests. */
  connection?: Pick<ConnectionOptions, "clock" | "openSocket">;
}

export interface Target {
  /** `wss://host/v1/realtime` without a query. */
  url: string;
  /** API key or client secret. */
  key?: string;
  /** More parameters, such as `{ preset: "captions" }`, or `{ room, participant }` of a room. */
  query?: Record<string, string>;
}

export class LiveCaptions {
  readonly store = new TranscriptStore();
  readonly #options: LiveCaptionsOptions;
  readonly #rate_hz: PcmRate;
  readonly #listeners = new Set<() => void>();
  #connection: Connection | null = null;
  #phase: Phase = "off";
  #link: ConnectionState = "idle";
  #problem: Problem | null = null;
  #lag_ms: number | null = null;
  #version = 0;
  #isRestarting = false;
  #numSamples = 0;
  /** Where this recording starts in the transcript, in samples. */
  #base = 0;

  constructor(options: LiveCaptionsOptions) {
    this.#options = options;
    this.#rate_hz = options.rate_hz ?? 16000;
  }

  get phase(): Phase {
    return this.#phase;
  }

  get link(): ConnectionState {
    return this.#link;
  }

  get problem(): Problem | null {
    return this.#problem;
  }

  /** Audio received by the server and not yet in the captions; `null` before it said. */
  get lag_ms(): number | null {
    return this.#lag_ms;
  }

  /** Audio that waits for the server, in seconds. */
  get backlog_s(): number {
    return this.#connection?.backlog_s ?? 0;
  }

  /** Changes with everything that is shown; with `subscribe` for `useSyncExternalStore`. */
  readonly version = (): number => this.#version;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Ask for the microphone and start; what is said goes on in the same transcript. */
  async start({ url, key, query }: Target): Promise<void> {
    if (this.#phase !== "off") return;
    this.#problem = null;
    this.#base += this.#numSamples;
    this.#numSamples = 0;
    this.#setPhase("starting");
    if (!(await this.#options.microphone.requestPermission())) {
      this.#problem = "denied";
      return this.#setPhase("off");
    }
    this.#connection = new Connection({
      ...this.#options.connection,
      url,
      rate_hz: this.#rate_hz,
      query: { preset: "captions", ...query },
      ...(key ? { key } : {}),
      onEvent: (event) => this.#onEvent(event),
    });
    this.#connection.start();
    await this.#listen();
  }

  /** Wait for the last words and close; stopping once more does not wait. */
  async stop(): Promise<void> {
    if (this.#phase === "stopping") return this.#connection?.abort();
    if (this.#phase === "off" || this.#phase === "starting") return;
    this.#setPhase("stopping");
    await this.#options.microphone.stop();
    await this.#connection?.finish();
  }

  /** The app is in front again: try at once what waited. */
  async wake(): Promise<void> {
    this.#connection?.retryNow();
    if (this.#phase === "interrupted") await this.#restart();
  }

  /** Two speakers of this recording are one person; once the server agrees, `store` has them as `into`. */
  mergeSpeakers(speaker: string, into: string): void {
    this.#connection?.mergeSpeakers(speaker, into);
  }

  /** Another network, none any more, or one again. */
  networkChanged(): void {
    this.#connection?.networkChanged();
  }

  async #listen(): Promise<void> {
    const { microphone } = this.#options;
    try {
      await microphone.start(this.#rate_hz, {
        onSamples: (samples) => this.#onSamples(samples),
        onInterrupted: (isInterrupted) => void (isInterrupted ? this.#interrupt() : this.#restart()),
        onRouteChanged: () => void this.#restart(),
      });
    } catch {
      // Busy in another app: the end of the interruption, or `wake`, tries again.
      if (this.#isOn) this.#setPhase("interrupted");
      return;
    }
    if (this.#isOn) this.#setPhase("listening");
    else await microphone.stop(); // It was stopped, or the connection ended, while it started.
  }

  /** Whether somebody wants to be heard. */
  get #isOn(): boolean {
    return this.#phase === "starting" || this.#phase === "listening" || this.#phase === "interrupted";
  }

  #interrupt(): void {
    if (this.#phase === "listening") this.#setPhase("interrupted");
  }

  async #restart(): Promise<void> {
    if (this.#isRestarting || (this.#phase !== "listening" && this.#phase !== "interrupted")) return;
    this.#isRestarting = true;
    this.#setPhase("interrupted");
    await this.#options.microphone.stop();
    if (this.#isOn) await this.#listen();
    this.#isRestarting = false;
  }

  #onSamples(samples: Float32Array): void {
    if (this.#phase !== "listening") return;
    this.#numSamples += samples.length;
    this.#connection?.send(toPcm(samples));
  }

  #onEvent(event: ClientEvent): void {
    switch (event.kind) {
      case "state":
        this.#link = event.state;
        break;
      case "server":
        this.store.apply(event.event, event.offset_s + this.#base / this.#rate_hz);
        if (event.event.type === "moss.ack") this.#lag_ms = event.event.lag_ms;
        break;
      case "session_lost":
        this.store.endSession();
        break;
      case "closed":
        void this.#onClosed(event.reason);
    }
    this.#changed();
  }

  async #onClosed(reason: EndReason): Promise<void> {
    const wasOn = this.#isOn;
    this.#connection = null;
    this.#lag_ms = null;
    this.store.endSession();
    if (reason !== "finished" && reason !== "aborted") this.#problem = reason;
    this.#setPhase("off");
    if (wasOn) await this.#options.microphone.stop();
  }

  #setPhase(phase: Phase): void {
    this.#phase = phase;
    this.#changed();
  }

  #changed(): void {
    this.#version += 1;
    this.#listeners.forEach((listener) => listener());
  }
}
