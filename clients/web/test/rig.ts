/** A connection to a server that is made up, with everything around it. */

import { Connection, TranscriptStore, type ClientEvent } from "../src/core";
import { FakeClock, FakeSocket, Server, type Link } from "./network";

export const RATE = 16000;

export function rig(link: Link, random: () => number, options: { backlog_s?: number; firstAttempts?: number } = {}) {
  const clock = new FakeClock(random);
  const server = new Server();
  const store = new TranscriptStore();
  const events: ClientEvent[] = [];
  const sockets: FakeSocket[] = [];
  const connection = new Connection({
    url: "ws://server/v1/realtime",
    rate_hz: RATE,
    openSocket: (url, protocols) => {
      const socket = new FakeSocket(url, protocols, clock, link, server);
      sockets.push(socket);
      return socket;
    },
    onEvent: (event) => {
      events.push(event);
      if (event.kind === "server") store.apply(event.event, event.offset_s);
      if (event.kind === "session_lost") store.endSession();
    },
    clock,
    ...options,
  });
  return { clock, server, store, events, sockets, connection };
}

/** What the server said to merges. */
export function answers(events: ClientEvent[]): string[] {
  return events.flatMap((event) => {
    if (event.kind !== "server") return [];
    if (event.event.type === "error") return [`error in ${event.event.error.param}`];
    return event.event.type === "moss.relabel" ? [`${event.event.speaker} is ${event.event.replaced_by}`] : [];
  });
}

export const steady: Link = { delay_ms: () => 20, cut: () => false };
