import type { SocketLike } from "./types.js";

// Browsers, React Native and Node from 22 on have it; the core is compiled without their types.
declare const WebSocket: (new (url: string, protocols: string[]) => SocketLike) | undefined;

/** Open a WebSocket of the host. */
export function openWebSocket(url: string, protocols: string[]): SocketLike {
  if (typeof WebSocket === "undefined") throw new Error("there is no WebSocket here: openSocket has to open one");
  return new WebSocket(url, protocols);
}
