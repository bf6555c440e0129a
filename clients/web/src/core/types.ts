/** What a connection needs from its host, and what it tells it. */

import type { Clock } from "./clock.js";
import type { PcmRate, ServerEvent } from "./protocol.js";

/** The part of a `WebSocket` that is used. */
export interface SocketLike {
  binaryType: string;
  readonly bufferedAmount: number;
  // `any`, so that a browser's WebSocket, whose handlers take wider events, is one of these.
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  send(data: string | Int16Array): void;
  close(code?: number, reason?: string): void;
}

export type ConnectionState = "idle" | "connecting" | "live" | "waiting" | "closed";

/**
 * Why a connection closed: `finished` by the server after all its events, `incomplete` when that
 * answer never came, `aborted` by the caller, `unreachable` when the first attempts all failed,
 * `refused` by the server, `taken_over` by another connection with the same token.
 */
export type EndReason = "finished" | "incomplete" | "aborted" | "unreachable" | "refused" | "taken_over";

export type ClientEvent =
  | { kind: "state"; state: ConnectionState; retry_ms?: number }
  /** A server event, once and in order. Add `offset_s` to the times in it. */
  | { kind: "server"; event: ServerEvent; offset_s: number }
  /** The server no longer knows the session: its unfinished utterance gets no final, a merge no answer. */
  | { kind: "session_lost" }
  /** The network was away for longer than the backlog holds; times of the stream in seconds. */
  | { kind: "audio_lost"; start_s: number; end_s: number }
  | { kind: "closed"; reason: EndReason; message: string };

export interface ConnectionOptions {
  /** `ws://host/v1/realtime` without a query. */
  url: string;
  /** Rate of the samples that are sent, in Hz. */
  rate_hz: PcmRate;
  onEvent: (event: ClientEvent) => void;
  /** API key or client secret, sent as a subprotocol because browsers cannot set headers. */
  key?: string;
  /** More query parameters, such as `{ preset: "captions" }`. */
  query?: Record<string, string>;
  /** The host's WebSocket where it has one. */
  openSocket?: (url: string, protocols: string[]) => SocketLike;
  clock?: Clock;
  /** Most unacknowledged audio that is kept, in seconds. */
  backlog_s?: number;
  /** Attempts to reach the server for the first time; later there is no limit. */
  firstAttempts?: number;
}
