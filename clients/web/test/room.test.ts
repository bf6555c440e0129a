import { describe, expect, test } from "vitest";
import { RoomConnection, RoomStore, render, type RoomClientEvent, type RoomEntry, type RoomEvent, type RoomPartial } from "../src/core";
import { FakeClock, FakeSocket, seeded, type Host, type Link, type Peer } from "./network";

function entry(id: string, start: number, speaker: string, text: string, complete = true): RoomEntry {
  const end = start + 1;
  return { entry: id, participant: "Ana", shared: true, start, end, segments: [{ speaker, start, end, text }], complete };
}

function partial(id: string, start: number, text: string): RoomPartial {
  const { complete: _, segments, ...rest } = entry(id, start, "S01", text);
  return { ...rest, segments: text ? segments.map((segment) => ({ ...segment, committed: false })) : [] };
}

const state = { room: "r", title: "Weekly", created_at: 0, clock: 1 };

/** The least room: settled changes are kept and counted, partials are not. */
class Room implements Host {
  readonly changes: { revision: number; event: object }[] = [];
  readonly entries: RoomEntry[] = [];
  readonly viewers = new Set<Peer>();
  partials: RoomPartial[] = [];

  onOpen(peer: Peer): void {
    const since = new URL(peer.url).searchParams.get("since");
    const common = { ...state, role: "publish", partials: this.partials };
    if (since === null) {
      const revision = this.changes.length;
      peer.push({ type: "room.snapshot", ...common, revision, names: {}, entries: this.entries });
    } else {
      peer.push({ type: "room.resumed", ...common, revision: Number(since) });
      this.changes.slice(Number(since)).forEach(({ event }) => peer.push(event));
    }
    this.viewers.add(peer);
  }

  onMessage(): void {
    throw new Error("viewers say nothing");
  }

  onGone(peer: Peer): void {
    this.viewers.delete(peer);
  }

  hear(heard: RoomPartial): void {
    this.partials = [heard];
    this.viewers.forEach((peer) => peer.push({ type: "room.partial", ...heard }));
  }

  settle(settled: RoomEntry): void {
    this.partials = [];
    this.entries.push(settled);
    this.change({ type: "room.entry", ...settled });
  }

  change(change: object): void {
    const revision = this.changes.length + 1;
    const event = { ...change, revision };
    this.changes.push({ revision, event });
    this.viewers.forEach((peer) => peer.push(event));
  }
}

const steady: Link = { delay_ms: () => 20, cut: () => false };

function rig(link: Link, random: () => number, key?: string) {
  const clock = new FakeClock(random);
  const room = new Room();
  const store = new RoomStore();
  const events: RoomClientEvent[] = [];
  const sockets: FakeSocket[] = [];
  const connection = new RoomConnection({
    url: "ws://server/v1/captions/r",
    ...(key ? { key } : {}),
    openSocket: (url, protocols) => {
      const socket = new FakeSocket(url, protocols, clock, link, room);
      sockets.push(socket);
      return socket;
    },
    onEvent: (event) => {
      events.push(event);
      if (event.kind === "room") store.apply(event.event);
    },
    clock,
  });
  return { clock, room, store, events, sockets, connection };
}

const texts = (store: RoomStore) => store.segments.map(({ text }) => text);

describe("a viewer", () => {
  test("gets the history when it joins, then what is said", () => {
    const { clock, room, store, connection } = rig(steady, () => 0.5);
    room.settle(entry("a-1", 0, "S01", "before"));
    connection.start();
    clock.run(100);
    expect(texts(store)).toEqual(["before"]);
    expect(store.title).toBe("Weekly");
    room.hear(partial("a-2", 2, "now"));
    clock.run(200);
    expect(store.live.map(({ text, committed }) => [text, committed])).toEqual([["now", false]]);
    room.settle(entry("a-2", 2, "S01", "now then"));
    clock.run(300);
    expect(texts(store)).toEqual(["before", "now then"]);
    expect(store.live).toEqual([]);
  });

  test("misses nothing and doubles nothing under 200 seeds of cuts and delays", () => {
    for (let seed = 1; seed <= 200; seed++) {
      const random = seeded(seed);
      let cuts = 0;
      const link: Link = { delay_ms: () => random() * 200, cut: () => cuts < 30 && random() < 0.1 && ++cuts > 0 };
      const { clock, room, store, connection } = rig(link, random);
      connection.start();
      for (let index = 0; index < 40; index++) {
        room.hear(partial(`a-${index}`, index, "maybe"));
        clock.run(clock.now() + random() * 300);
        room.settle(entry(`a-${index}`, index, "S01", `said ${index}`));
        clock.run(clock.now() + random() * 300);
      }
      clock.run(clock.now() + 60_000);
      expect(texts(store)).toEqual(Array.from({ length: 40 }, (_, index) => `said ${index}`));
      expect(store.live).toEqual([]);
    }
  });

  test("asks anew in a silent room, for the network may be dead", () => {
    const { clock, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(50_000);
    expect(sockets).toHaveLength(1);
    clock.run(70_000);
    expect(sockets).toHaveLength(2);
    expect(sockets[1]?.url).toContain("?since=0");
    expect(connection.state).toBe("live");
  });

  test("comes back at once when the network has changed", () => {
    const { clock, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(100);
    connection.networkChanged();
    clock.run(200);
    expect(sockets).toHaveLength(2);
    expect(sockets[0]?.isOpen).toBe(false);
    expect(connection.state).toBe("live");
  });

  test("comes back when a settled change is missing", () => {
    const { clock, room, store, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(100);
    sockets[0]?.push({ type: "room.entry", ...entry("a-9", 9, "S01", "later"), revision: 9 });
    room.settle(entry("a-1", 1, "S01", "first"));
    clock.run(5000);
    expect(sockets).toHaveLength(2);
    expect(texts(store)).toEqual(["first"]);
  });

  test.each([
    [4410, "the room was deleted"],
    [1008, "no"],
  ])("does not come back after close code %i", (code, reason) => {
    const { clock, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(100);
    sockets[0]?.push({ type: "room.closed", code, reason });
    sockets[0]?.end(code);
    clock.run(120_000);
    expect(sockets).toHaveLength(1);
    expect(connection.state).toBe("closed");
    expect(events.at(-1)).toEqual({ kind: "ended", reason });
  });

  test.each([1006, 1011, 1012, 1013])("comes back after close code %i", (code) => {
    const { clock, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(100);
    sockets[0]?.end(code);
    clock.run(1000);
    expect(sockets).toHaveLength(2);
    expect(connection.state).toBe("live");
  });

  test("that is closed looks no more", () => {
    const { clock, events, sockets, connection } = rig({ delay_ms: () => 1, cut: () => true }, () => 0.5);
    connection.start();
    clock.run(100);
    expect(connection.state).toBe("waiting");
    connection.close();
    connection.close();
    connection.retryNow();
    connection.networkChanged();
    clock.run(120_000);
    expect(sockets).toHaveLength(1);
    expect(events.at(-1)).toEqual({ kind: "state", state: "closed" });
  });

  test("passes over what it does not know", () => {
    const { clock, store, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(100);
    sockets[0]?.onmessage?.({ data: "no json" });
    sockets[0]?.onmessage?.({ data: new ArrayBuffer(2) });
    sockets[0]?.onmessage?.({ data: "[1]" });
    sockets[0]?.push({ type: "room.of-tomorrow", text: 1 });
    clock.run(200);
    expect(connection.state).toBe("live");
    expect(store.segments).toEqual([]);
  });

  test("sends its token as a subprotocol", () => {
    const { sockets, connection } = rig(steady, () => 0.5, "rv_1");
    connection.start();
    expect(sockets[0]?.protocols).toEqual(["realtime", "openai-insecure-api-key.rv_1"]);
    expect(sockets[0]?.url).toBe("ws://server/v1/captions/r");
  });
});

describe("a room's transcript", () => {
  const snapshot = (entries: RoomEntry[], names: Record<string, string> = {}): RoomEvent => ({
    type: "room.snapshot",
    ...state,
    role: "publish",
    revision: 3,
    names,
    entries,
    partials: [],
  });

  test("sorts what several microphones say at once", () => {
    const store = new RoomStore();
    store.apply(snapshot([entry("b-1", 5, "Ben", "second"), entry("a-1", 1, "Ana", "first")]));
    const before = store.segments;
    store.apply({ type: "room.entry", revision: 4, ...entry("a-2", 7, "Ana", "fourth") });
    expect(store.segments).toBe(before); // it only grew
    store.apply({ type: "room.entry", revision: 5, ...entry("b-2", 6, "Ben", "third") });
    expect(store.segments).not.toBe(before);
    expect(texts(store)).toEqual(["first", "second", "third", "fourth"]);
  });

  test("gives speakers their names and takes them away", () => {
    const store = new RoomStore();
    store.apply(snapshot([entry("a-1", 1, "S02", "hello")], { S02: "Ana" }));
    expect(store.nameOf("S02")).toBe("Ana");
    expect(render(store.named(), "txt")).toBe("Ana [1.00-2.00] hello\n");
    const before = store.segments;
    store.apply({ type: "room.renamed", revision: 4, speaker: "S02", name: "Anna" });
    expect(store.nameOf("S02")).toBe("Anna");
    expect(store.segments).not.toBe(before); // all of it is to be drawn again
    store.apply({ type: "room.renamed", revision: 5, speaker: "S02", name: null });
    expect(store.nameOf("S02")).toBe("S02");
    expect(store.nameOf("constructor")).toBe("constructor");
  });

  test("reads a relabelled speaker as the other everywhere", () => {
    const store = new RoomStore();
    store.apply(snapshot([entry("a-1", 1, "S03", "hello"), entry("a-2", 2, "S02", "yes")], { S03: "Ben" }));
    expect(store.speakers).toEqual(["S03", "S02"]);
    store.apply({ type: "room.partial", ...partial("a-3", 3, "well") });
    store.apply({ type: "room.relabelled", revision: 4, speaker: "S03", replaced_by: "S02" });
    store.apply({ type: "room.relabelled", revision: 5, speaker: "S01", replaced_by: "S02" });
    expect(store.segments.map(({ speaker }) => speaker)).toEqual(["S02", "S02"]);
    expect(store.live.map(({ speaker }) => speaker)).toEqual(["S02"]);
    expect(store.speakers).toEqual(["S02"]);
    expect(store.nameOf("S03")).toBe("S03");
  });

  test("takes back what turned out not to be speech, and says where text ends early", () => {
    const store = new RoomStore();
    store.apply(snapshot([]));
    store.apply({ type: "room.partial", ...partial("a-1", 1, "hm") });
    store.apply({ type: "room.partial", ...partial("a-1", 1, "") });
    expect(store.live).toEqual([]);
    store.apply({ type: "room.entry", revision: 4, ...entry("a-2", 2, "Ana", "and then", false) });
    expect(texts(store)).toEqual(["and then …"]);
  });

  test("keeps what it has and replaces what is being heard when it resumes", () => {
    const store = new RoomStore();
    store.apply(snapshot([entry("a-1", 1, "S01", "hello")]));
    store.apply({ type: "room.partial", ...partial("a-2", 2, "stale") });
    store.apply({ type: "room.resumed", ...state, role: "view", revision: 3, partials: [partial("a-3", 3, "new")] });
    expect(texts(store)).toEqual(["hello"]);
    expect(store.live.map(({ text }) => text)).toEqual(["new"]);
    expect(store.role).toBe("view");
  });
});
