/**
 * A viewer of a room, over as many sockets as it takes.
 *
 * States: `connecting` -> `live` -> `waiting` (back-off) -> `connecting` ... -> `closed`. It comes
 * back for what it has missed, by the revision that it knows.
 */

import { backoff_ms, systemClock, type Clock } from "./clock.js";
import { CloseCode } from "./protocol.js";
import { parseRoomEvent, type RoomEvent } from "./room-protocol.js";
import { openWebSocket } from "./socket.js";
import type { SocketLike } from "./types.js";

export type RoomConnectionState = "connecting" | "live" | "waiting" | "closed";

export type RoomClientEvent =
  | { kind: "state"; state: RoomConnectionState }
  /** A server event, once and in order. */
  | { kind: "room"; event: RoomEvent }
  /** The server does not want this viewer back; `reason` is its own. Not told after `close`. */
  | { kind: "ended"; reason: string };

export interface RoomConnectionOptions {
  /** `ws://host/v1/captions/ROOM` without a query. */
  url: string;
  onEvent: (event: RoomClientEvent) => void;
  /** A token of the room or an API key, sent as a subprotocol. */
  key?: string;
  /** The host's WebSocket where it has one. */
  openSocket?: (url: string, protocols: string[]) => SocketLike;
  clock?: Clock;
}

type Timer = "retry" | "watch";

const BACKOFF = { first_ms: 250, max_ms: 8_000 };
const HANDSHAKE_MS = 10_000;
/**
 * A dead network does not close a socket, and a room in which nobody speaks is silent, too: after
 * this long it is asked anew, which costs little.
 */
const QUIET_MS = 60_000;
const FINAL_CODES: readonly number[] = [CloseCode.policy, CloseCode.deleted];

export class RoomConnection {
  readonly #options: RoomConnectionOptions;
  readonly #clock: Clock;
  #state: RoomConnectionState = "connecting";
  #socket: SocketLike | null = null;
  /** Last settled change; `null` before the first snapshot. */
  #revision: number | null = null;
  #hasBegun = false;
  #attempt = 0;
  #reason = "";
  readonly #timers: Partial<Record<Timer, () => void>> = {};

  constructor(options: RoomConnectionOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  get state(): RoomConnectionState {
    return this.#state;
  }

  /** Connect. */
  start(): void {
    if (!this.#socket && this.#state === "connecting") this.#connect();
  }

  /** Do not wait for the back-off. */
  retryNow(): void {
    if (this.#state === "waiting") this.#connect();
  }

  /** The network has changed: leave the socket, which may hang, and come back at once. */
  networkChanged(): void {
    if (this.#state === "closed") return;
    this.#detach();
    this.#connect();
  }

  /** Look no more. */
  close(): void {
    if (this.#state === "closed") return;
    this.#detach();
    this.#clearTimer("retry");
    this.#setState("closed");
  }

  #connect(): void {
    this.#clearTimer("retry");
    const { url, key, openSocket = openWebSocket } = this.#options;
    this.#hasBegun = false;
    this.#setState("connecting");
    const query = this.#revision === null ? "" : `?since=${this.#revision}`;
    const socket = openSocket(url + query, key ? ["realtime", `openai-insecure-api-key.${key}`] : []);
    socket.onmessage = ({ data }: { data: unknown }) => this.#onMessage(data);
    socket.onclose = ({ code, reason }: { code: number; reason: string }) => this.#onClose(code, reason);
    this.#socket = socket;
    this.#watch(HANDSHAKE_MS);
  }

  #onMessage(data: unknown): void {
    const event = typeof data === "string" ? parseRoomEvent(data) : null;
    if (event === null) return;
    this.#watch(QUIET_MS);
    switch (event.type) {
      case "room.snapshot":
      case "room.resumed":
        this.#hasBegun = true;
        this.#attempt = 0;
        this.#revision = event.revision;
        this.#emit({ kind: "room", event });
        return this.#setState("live");
      case "room.closed":
        this.#reason = event.reason;
        return;
    }
    if (!this.#hasBegun) return;
    if ("revision" in event) {
      const known = this.#revision ?? 0;
      if (event.revision <= known) return;
      if (event.revision > known + 1) return this.#retry(); // Coming back brings what is missing.
      this.#revision = event.revision;
    }
    this.#emit({ kind: "room", event });
  }

  #onClose(code: number, reason: string): void {
    if (!FINAL_CODES.includes(code)) return this.#retry();
    this.close();
    this.#emit({ kind: "ended", reason: reason || this.#reason });
  }

  #retry(): void {
    this.#detach();
    const wait_ms = backoff_ms(this.#attempt, this.#clock.random(), BACKOFF);
    this.#attempt += 1;
    this.#setTimer("retry", wait_ms, () => this.#connect());
    this.#setState("waiting");
  }

  #watch(patience_ms: number): void {
    this.#setTimer("watch", patience_ms, () => this.networkChanged());
  }

  #detach(): void {
    this.#clearTimer("watch");
    const socket = this.#socket;
    this.#socket = null;
    if (!socket) return;
    socket.onmessage = null;
    socket.onclose = null;
    socket.close(CloseCode.normal);
  }

  #setState(state: RoomConnectionState): void {
    this.#state = state;
    this.#emit({ kind: "state", state });
  }

  #emit(event: RoomClientEvent): void {
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
