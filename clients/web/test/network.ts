/** A simulated network and server: time, delays and cuts come from one seed or script. */

import type { Clock, SocketLike } from "../src/core";

/** Numbers in [0, 1) from a seed (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

interface Timer {
  at: number;
  order: number;
  action: () => void;
}

/** A clock that runs as fast as its timers allow. */
export class FakeClock implements Clock {
  #now = 0;
  #order = 0;
  #timers: Timer[] = [];
  readonly random: () => number;

  constructor(random: () => number) {
    this.random = random;
  }

  now(): number {
    return this.#now;
  }

  after(delay_ms: number, action: () => void): () => void {
    const timer = { at: this.#now + delay_ms, order: this.#order++, action };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** Run timers until `until_ms`, or until none is left. */
  run(until_ms: number): void {
    for (;;) {
      const next = this.#timers.reduce<Timer | null>(
        (best, timer) =>
          best && (best.at < timer.at || (best.at === timer.at && best.order < timer.order)) ? best : timer,
        null,
      );
      if (!next || next.at > until_ms) break;
      this.#timers.splice(this.#timers.indexOf(next), 1);
      this.#now = next.at;
      next.action();
    }
    this.#now = Math.max(this.#now, until_ms);
  }
}

export interface Link {
  /** Milliseconds a message takes. */
  delay_ms: () => number;
  /** Asked before each delivery in either direction; true cuts the connection instead. */
  cut: () => boolean;
}

/** What a server needs of a socket. */
export interface Peer {
  readonly url: string;
  push(event: object): void;
  end(code: number): void;
}

/** A server, as sockets see it. */
export interface Host {
  onOpen(peer: Peer): void;
  onMessage(peer: Peer, data: string | Int16Array): void;
  onGone(peer: Peer, code: number): void;
}

/** Both ends of one connection. Deliveries keep their order; a cut loses what is on its way. */
export class FakeSocket implements SocketLike {
  binaryType = "blob";
  bufferedAmount = 0;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  isOpen = true;
  #arrivesAt = { up: 0, down: 0 };

  constructor(
    readonly url: string,
    readonly protocols: string[],
    private readonly clock: Clock,
    private readonly link: Link,
    private readonly server: Host,
  ) {
    this.#deliver("up", () => server.onOpen(this));
  }

  send(data: string | Int16Array): void {
    const size = typeof data === "string" ? data.length : data.byteLength;
    const copy = typeof data === "string" ? data : data.slice();
    this.bufferedAmount += size;
    this.#deliver("up", () => {
      this.bufferedAmount -= size;
      this.server.onMessage(this, copy);
    });
  }

  close(code: number): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.server.onGone(this, code);
  }

  /** Server to client. */
  push(event: object): void {
    const data = JSON.stringify(event);
    this.#deliver("down", () => this.onmessage?.({ data }));
  }

  /** The server closes after what it pushed. */
  end(code: number): void {
    this.#deliver("down", () => this.#closed(code));
  }

  #closed(code: number): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.server.onGone(this, code);
    this.onclose?.({ code, reason: "" });
  }

  #deliver(direction: "up" | "down", action: () => void): void {
    const at = Math.max(this.#arrivesAt[direction], this.clock.now() + Math.round(this.link.delay_ms()));
    this.#arrivesAt[direction] = at;
    this.clock.after(at - this.clock.now(), () => {
      if (!this.isOpen) return;
      if (this.link.cut()) this.#closed(1006);
      else action();
    });
  }
}

interface ServerSession {
  token: string;
  rate: number | null;
  samples: number[];
  log: { seq: number; event: object }[];
  seq: number;
  finals: number;
  speakers: Set<string>;
  /** Merges that came, carried out or not. */
  merges: string[];
  socket: Peer | null;
}

const FINAL_SAMPLES = 700;
const ITEM = "item";

/** The least server that keeps the contract: each 700 samples make a final of their sum. */
export class Server implements Host {
  readonly sessions: ServerSession[] = [];
  /** Tokens that are no longer known. */
  readonly expired = new Set<string>();
  connections = 0;
  /** An older server knows no such request. */
  knowsMerges = true;

  onOpen(socket: Peer): void {
    this.connections += 1;
    const query = new URL(socket.url).searchParams;
    const token = query.get("resume");
    if (token === null) {
      const session: ServerSession = {
        token: `token-${this.sessions.length}`,
        rate: null,
        samples: [],
        log: [],
        seq: 0,
        finals: 0,
        speakers: new Set(["S01", "S02", "S03"]),
        merges: [],
        socket,
      };
      this.sessions.push(session);
      this.#say(session, { type: "session.created", session: this.#info(session) });
      return;
    }
    const session = this.sessions.find((candidate) => candidate.token === token);
    if (!session || this.expired.has(token)) {
      socket.push({ type: "error", error: { type: "invalid_request_error", code: "resume_expired", message: "" } });
      socket.end(4404);
      return;
    }
    const older = session.socket;
    session.socket = socket;
    older?.end(4409);
    const replay = session.log.filter(({ seq }) => seq > Number(query.get("last_seq")));
    socket.push({
      type: "moss.resumed",
      received_samples: session.samples.length,
      replayed: replay.length,
      moss: {},
    });
    replay.forEach(({ event }) => socket.push(event));
  }

  onMessage(socket: Peer, data: string | Int16Array): void {
    const session = this.sessions.find((candidate) => candidate.socket === socket);
    if (!session) return;
    if (typeof data === "string") {
      const message = JSON.parse(data);
      if (message.type === "moss.finish") this.#finish(session);
      if (message.type === "moss.merge_speakers") this.#merge(session, message.speaker, message.into);
      if (message.type !== "session.update") return;
      session.rate = message.session.audio.input.format.rate;
      this.#say(session, { type: "session.updated", session: this.#info(session) });
      return;
    }
    if (session.rate === null) throw new Error("audio before its format");
    session.samples.push(...data);
    while (session.samples.length >= (session.finals + 1) * FINAL_SAMPLES) this.#final(session, FINAL_SAMPLES);
    this.#say(session, {
      type: "moss.ack",
      received_samples: session.samples.length,
      decoded_samples: session.samples.length,
      lag_ms: 0,
      degraded: false,
    });
  }

  /** A session outlives its socket, unless one side closed it in order. */
  onGone(socket: Peer, code: number): void {
    const session = this.sessions.find((candidate) => candidate.socket === socket);
    if (!session) return;
    session.socket = null;
    if (code === 1000) this.expired.add(session.token);
  }

  #final(session: ServerSession, length: number): void {
    const start = session.finals * FINAL_SAMPLES;
    const sum = session.samples.slice(start, start + length).reduce((total, sample) => total + sample, 0);
    session.finals += 1;
    const rate = session.rate ?? 1;
    const item_id = `${session.token}/${ITEM}${session.finals}`;
    const base = { item_id, content_index: 0 };
    this.#say(session, {
      type: "moss.hypothesis",
      item_id,
      revision: 1,
      committed_text: "",
      partial_text: "so far",
      segments: [{ speaker: "S01", start: start / rate, end: (start + length) / rate, text: "so far", committed: false }],
      lag_ms: 0,
    });
    this.#say(session, {
      ...base,
      type: "conversation.item.input_audio_transcription.segment",
      id: "seg_0",
      speaker: "S01",
      start: start / rate,
      end: (start + length) / rate,
      text: String(sum),
    });
    this.#say(session, {
      ...base,
      type: "conversation.item.input_audio_transcription.completed",
      transcript: String(sum),
    });
  }

  #merge(session: ServerSession, speaker: string, into: string): void {
    session.merges.push(`${speaker} ${into}`);
    const refuse = (param: string) =>
      this.#say(session, { type: "error", error: { type: "invalid_request_error", message: "", param } });
    if (!this.knowsMerges) return refuse("type");
    if (!session.speakers.has(speaker)) return refuse("speaker");
    if (!session.speakers.has(into) || speaker === into) return refuse("into");
    session.speakers.delete(speaker);
    this.#say(session, { type: "moss.relabel", speaker, replaced_by: into });
  }

  #finish(session: ServerSession): void {
    if (session.log.some(({ event }) => (event as { type: string }).type === "moss.finished")) return;
    const rest = session.samples.length - session.finals * FINAL_SAMPLES;
    if (rest > 0) this.#final(session, rest);
    this.#say(session, { type: "moss.finished", received_samples: session.samples.length });
    session.socket?.end(1000);
  }

  #info(session: ServerSession): object {
    return { id: session.token, moss: { resume_token: session.token, snapshots: true, acks: true } };
  }

  #say(session: ServerSession, body: object): void {
    session.seq += 1;
    const event = { ...body, event_id: `event_${session.seq}`, moss: { seq: session.seq } };
    session.log.push({ seq: session.seq, event });
    session.socket?.push(event);
  }
}
