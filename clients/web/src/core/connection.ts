/**
 * One stream of audio to a moss-stream server, over as many sockets as it takes.
 *
 * States: `idle` (no socket, none wanted yet) -> `connecting` -> `live` -> `waiting` (back-off)
 * -> `connecting` ... -> `closed`. Audio may be sent in every state but `closed`: it is kept by
 * position until the server acknowledges it, and sent again from where the server says it is.
 *
 * Positions inside are counted from the first sample of the stream. A session of the server counts
 * from its own start, `base`, which is 0 until a session is lost for good and a new one begins.
 */

import { Backlog } from "./backlog.js";
import { backoff_ms, systemClock, type Clock } from "./clock.js";
import { Drains } from "./drains.js";
import { Merges } from "./merges.js";
import { CloseCode, parseEvent, type Resumed, type ServerEvent, type SessionInfo } from "./protocol.js";
import { openWebSocket } from "./socket.js";
import type { ClientEvent, ConnectionOptions, ConnectionState, EndReason, SocketLike } from "./types.js";

interface Session {
  token: string | null;
  lastSeq: number;
  base: number;
  acks: boolean;
  configured: boolean;
}

/** What a socket has been through: the first event, then `session.updated`, then audio flows. */
type Phase = "opening" | "configuring" | "live";

type Timer = "retry" | "pump" | "watch" | "finish";

const HIGH_WATER_BYTES = 128 * 1024;
/** Most audio on its way to a server that acknowledges: some sockets never tell what they hold. */
const MAX_IN_FLIGHT_S = 10;
const PUMP_AGAIN_MS = 50;
const MAX_BLOCK_S = 0.5;
const HANDSHAKE_MS = 10_000;
const STALL_MS = 8_000;
const FINISH_MS = 30_000;
const BACKOFF = { first_ms: 250, max_ms: 8_000 };
const CAPACITY_WAIT_MS = 5_000;
const FATAL_CODES: readonly number[] = [
  CloseCode.unsupportedData,
  CloseCode.badPayload,
  CloseCode.policy,
  CloseCode.tooBig,
  CloseCode.deleted,
];

export class Connection {
  readonly #options: ConnectionOptions;
  readonly #clock: Clock;
  readonly #backlog: Backlog;
  #state: ConnectionState = "idle";
  #socket: SocketLike | null = null;
  #phase: Phase = "opening";
  #session: Session | null = null;
  #everLive = false;
  #attempt = 0;
  /** Position up to which the server has the audio. */
  #acked = 0;
  /** Position up to which the audio was given to the present socket. */
  #sentAt = 0;
  /** Position up to which forgotten audio has been reported. */
  #lostUntil = 0;
  #heardAt_ms = 0;
  #owedSince_ms = 0;
  #lastMessage = "";
  #finishSent = false;
  #finish: Promise<EndReason> | null = null;
  #onEnd: (reason: EndReason) => void = () => {};
  readonly #merges = new Merges();
  readonly #drains = new Drains();
  readonly #timers: Partial<Record<Timer, () => void>> = {};

  constructor(options: ConnectionOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#backlog = new Backlog((options.backlog_s ?? 120) * options.rate_hz);
  }

  get state(): ConnectionState {
    return this.#state;
  }

  /** Audio not yet acknowledged, in seconds; not yet sent, where the server acknowledges none. */
  get backlog_s(): number {
    const delivered = this.#session?.acks === false ? this.#sentAt : this.#acked;
    return (this.#backlog.end - delivered) / this.#options.rate_hz;
  }

  /** Connect. Audio may be sent before, too. */
  start(): void {
    if (this.#state === "idle") this.#connect();
  }

  /** Send samples at the declared rate. The array is kept, not copied. */
  send(samples: Int16Array): void {
    if (this.#state === "closed" || this.#finish) return;
    this.#backlog.append(samples);
    if (this.#state === "idle") this.#connect();
    else this.#pump();
  }

  /**
   * Wait until the server has all but `max_s` seconds of what was sent, or the connection is closed.
   * Who sends faster than people speak, such as a file, waits here: the backlog has a limit.
   */
  drained(max_s: number): Promise<void> {
    return this.#drains.wait(max_s, this.#state === "closed" ? 0 : this.backlog_s);
  }

  /**
   * Say that `speaker` is the same person as `into`. The answer is the event `moss.relabel`, or an
   * `error` whose `param` is `speaker` or `into`. While the network is away the request is kept; a
   * session that is lost takes it along, for its labels mean nothing to the next one.
   */
  mergeSpeakers(speaker: string, into: string): void {
    if (this.#state === "closed") return;
    this.#merges.add(speaker, into);
    this.#pump();
  }

  /** Send what is left, wait for the last finals and close. */
  finish(): Promise<EndReason> {
    if (this.#finish) return this.#finish;
    this.#finish = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
    this.#awaitEnd();
    if (this.#state !== "idle") this.#pump();
    else if (this.#sentAt < this.#backlog.end) this.#connect();
    else this.#end("finished", "");
    return this.#finish;
  }

  /** Close at once; what is not transcribed is lost. */
  abort(): void {
    this.#end("aborted", "");
  }

  /** Do not wait for the back-off, for instance because somebody looks at the page again. */
  retryNow(): void {
    if (this.#state === "waiting") this.#connect();
  }

  /**
   * The network has changed: leave the socket, which may hang for long before it fails, and come
   * back at once for the session. A session that cannot be resumed keeps its socket.
   */
  networkChanged(): void {
    if (this.#state === "idle" || this.#state === "closed") return;
    if (this.#session && !this.#session.token) return this.retryNow();
    this.#detach(CloseCode.comingBack);
    this.#connect();
  }

  #connect(): void {
    this.#clearTimer("retry");
    const { url, key, query, openSocket = openWebSocket } = this.#options;
    const parameters: Record<string, string> = { intent: "transcription", ...query };
    if (this.#session?.token) {
      parameters["resume"] = this.#session.token;
      parameters["last_seq"] = String(this.#session.lastSeq);
    } else {
      this.#loseSession();
    }
    const pairs = Object.entries(parameters).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : [];
    this.#phase = "opening";
    this.#setState("connecting");
    const socket = openSocket(`${url}?${pairs.join("&")}`, protocols);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }: { data: unknown }) => this.#onMessage(data);
    socket.onclose = ({ code, reason }: { code: number; reason: string }) => this.#onClose(code, reason);
    this.#socket = socket;
    this.#setTimer("watch", HANDSHAKE_MS, () => this.#drop());
  }

  #onMessage(data: unknown): void {
    const event = typeof data === "string" ? parseEvent(data) : null;
    if (event === null) return;
    this.#heardAt_ms = this.#clock.now();
    if (this.#finish) this.#awaitEnd();
    if (this.#phase === "opening") {
      if (event.type === "moss.resumed") return this.#onResumed(event);
      if (event.type === "session.created") this.#startSession(event.session);
    }
    const session = this.#session;
    const seq = event.moss?.seq;
    if (session && seq !== undefined) {
      if (seq <= session.lastSeq) return;
      if (seq > session.lastSeq + 1) return this.#drop(); // Resuming brings what is missing.
      session.lastSeq = seq;
    }
    this.#merges.observe(event);
    this.#emit({ kind: "server", event, offset_s: (session?.base ?? 0) / this.#options.rate_hz });
    this.#act(event);
    this.#pump();
  }

  #act(event: ServerEvent): void {
    switch (event.type) {
      case "session.created":
        break;
      case "session.updated":
        if (this.#session) this.#session.configured = true;
        if (this.#phase === "configuring") this.#goLive();
        break;
      case "error":
        this.#lastMessage = event.error.message;
        // Without its format the audio would be misread: there is no point in going on.
        if (this.#phase === "configuring") this.#end("refused", event.error.message);
        break;
      case "moss.ack":
        this.#attempt = 0;
        this.#acknowledge(event.received_samples);
        break;
      case "moss.finished":
        this.#acknowledge(event.received_samples);
        this.#end("finished", "");
        break;
      default:
        this.#attempt = 0;
    }
  }

  #startSession(info: SessionInfo): void {
    if (this.#session) this.#loseSession();
    const moss = info.moss;
    this.#session = {
      token: moss?.resume_token ?? null,
      lastSeq: 0,
      base: this.#acked,
      acks: moss !== undefined,
      configured: false,
    };
    this.#sentAt = this.#acked;
    this.#configure();
  }

  /** The next session starts where the server was heard to be, or after what is forgotten. */
  #loseSession(): void {
    if (!this.#session) return;
    if (!this.#session.acks) this.#release(this.#sentAt);
    this.#session = null;
    this.#merges.clear();
    this.#emit({ kind: "session_lost" });
    this.#reportLoss(this.#acked);
    this.#release(Math.max(this.#acked, this.#backlog.start));
  }

  #configure(): void {
    this.#phase = "configuring";
    const format = { type: "audio/pcm", rate: this.#options.rate_hz };
    const moss = this.#session?.acks ? { moss: { snapshots: true, acks: true } } : {};
    const session = { type: "transcription", audio: { input: { format } }, ...moss };
    this.#socket?.send(JSON.stringify({ type: "session.update", session }));
  }

  #onResumed(event: Resumed): void {
    const session = this.#session;
    if (!session) return this.#drop();
    const position = session.base + event.received_samples;
    if (position > this.#backlog.end) {
      // This is not our audio: begin anew.
      this.#loseSession();
      return this.#drop();
    }
    this.#release(position);
    this.#sentAt = position;
    this.#merges.rewind(session.lastSeq + event.replayed);
    if (session.configured) this.#goLive();
    else this.#configure();
  }

  #goLive(): void {
    this.#phase = "live";
    this.#everLive = true;
    this.#finishSent = false;
    this.#owedSince_ms = this.#clock.now();
    this.#setState("live");
    this.#watch();
    this.#pump();
  }

  /**
   * Give the socket what it takes without queueing much; the rest waits in the backlog. Each event
   * of the server may be what something here has waited for.
   */
  #pump(): void {
    const socket = this.#socket;
    if (this.#phase !== "live" || !socket) return;
    for (const request of this.#merges.take(this.#session?.lastSeq ?? 0)) socket.send(JSON.stringify(request));
    const maxBlock = MAX_BLOCK_S * this.#options.rate_hz;
    const maxInFlight = MAX_IN_FLIGHT_S * this.#options.rate_hz;
    while (this.#sentAt < this.#backlog.end) {
      if (socket.bufferedAmount > HIGH_WATER_BYTES) {
        this.#setTimer("pump", PUMP_AGAIN_MS, () => this.#pump());
        return;
      }
      // The next acknowledgement goes on.
      if (this.#session?.acks && this.#sentAt - this.#acked >= maxInFlight) return;
      this.#reportLoss(this.#sentAt);
      if (this.#sentAt === this.#acked) this.#owedSince_ms = this.#clock.now();
      const block = this.#backlog.read(this.#sentAt, maxBlock);
      this.#sentAt += block.length;
      socket.send(block);
    }
    this.#drains.update(this.backlog_s);
    if (this.#finish && !this.#finishSent && this.#merges.areSent) {
      this.#finishSent = true;
      socket.send(JSON.stringify({ type: "moss.finish" }));
    }
  }

  #acknowledge(received: number): void {
    const position = (this.#session?.base ?? 0) + received;
    this.#release(Math.max(this.#acked, Math.min(position, this.#sentAt)));
  }

  /** The server has the audio up to `position`. */
  #release(position: number): void {
    this.#acked = position;
    this.#backlog.release(position);
    this.#drains.update(this.backlog_s);
  }

  /** A dead network does not close a socket; a server that owes an answer and is silent does. */
  #watch(): void {
    this.#setTimer("watch", STALL_MS / 4, () => {
      const owes = this.#session?.acks === true && this.#sentAt > this.#acked;
      const silent_ms = this.#clock.now() - Math.max(this.#heardAt_ms, this.#owedSince_ms);
      if (owes && silent_ms >= STALL_MS) this.#drop();
      else this.#watch();
    });
  }

  /** A server that is behind may take long to finish, but it is not silent. */
  #awaitEnd(): void {
    this.#setTimer("finish", FINISH_MS, () => this.#end("incomplete", "the server does not answer"));
  }

  /** Leave this socket and come back for the session. */
  #drop(): void {
    this.#detach(CloseCode.comingBack);
    this.#retry(0);
  }

  #onClose(code: number, reason: string): void {
    this.#detach();
    if (reason) this.#lastMessage = reason;
    if (code === CloseCode.takenOver) return this.#end("taken_over", this.#lastMessage);
    if (FATAL_CODES.includes(code)) return this.#end("refused", this.#lastMessage || `closed with code ${code}`);
    const expired = code === CloseCode.resumeUnknown || code === CloseCode.idleTimeout;
    if (expired || code === CloseCode.restarting) this.#loseSession();
    if (code === CloseCode.idleTimeout && this.#acked === this.#backlog.end) {
      if (this.#finish) return this.#end("finished", "");
      return this.#setState("idle");
    }
    this.#retry(code === CloseCode.atCapacity ? CAPACITY_WAIT_MS : 0);
  }

  #retry(least_ms: number): void {
    if (!this.#everLive && this.#attempt + 1 >= (this.#options.firstAttempts ?? 5)) {
      return this.#end("unreachable", this.#lastMessage);
    }
    const wait_ms = Math.max(least_ms, backoff_ms(this.#attempt, this.#clock.random(), BACKOFF));
    this.#attempt += 1;
    this.#setTimer("retry", wait_ms, () => this.#connect());
    this.#setState("waiting", wait_ms);
  }

  #end(reason: EndReason, message: string): void {
    if (this.#state === "closed") return;
    this.#detach();
    this.#clearTimer("retry");
    this.#clearTimer("finish");
    this.#setState("closed");
    this.#drains.update(0);
    this.#emit({ kind: "closed", reason, message });
    this.#finish ??= Promise.resolve(reason);
    this.#onEnd(reason);
  }

  /** Let go of the socket: nothing of it is heard from here on. */
  #detach(code: number = CloseCode.normal): void {
    this.#clearTimer("pump");
    this.#clearTimer("watch");
    const socket = this.#socket;
    this.#socket = null;
    this.#phase = "opening";
    if (!socket) return;
    socket.onmessage = null;
    socket.onclose = null;
    socket.close(code);
  }

  /** Say once which audio from `position` on the backlog had to forget. */
  #reportLoss(position: number): void {
    const from = Math.max(position, this.#lostUntil);
    const to = this.#backlog.start;
    if (from >= to) return;
    this.#lostUntil = to;
    const rate = this.#options.rate_hz;
    this.#emit({ kind: "audio_lost", start_s: from / rate, end_s: to / rate });
  }

  #setState(state: ConnectionState, retry_ms?: number): void {
    this.#state = state;
    this.#emit(retry_ms === undefined ? { kind: "state", state } : { kind: "state", state, retry_ms });
  }

  #emit(event: ClientEvent): void {
    this.#options.onEvent(event);
  }

  #setTimer(name: Timer, delay_ms: number, action: () => void): void {
    this.#clearTimer(name);
    this.#timers[name] = this.#clock.after(delay_ms, action);
  }

  #clearTimer(name: Timer): void {
    this.#timers[name]?.();
    delete this.#timers[name];
  }
}
