import { describe, expect, test, vi } from "vitest";
import { Connection, TranscriptStore, type ClientEvent, type EndReason } from "../src/core";
import { FakeClock, FakeSocket, Server, seeded, type Link } from "./network";
import { RATE, answers, rig, steady } from "./rig";

const BLOCK = 160;
const BLOCKS = 40;

interface Run {
  server: Server;
  store: TranscriptStore;
  events: ClientEvent[];
  ended: EndReason | null;
}

const samples = Array.from({ length: BLOCK * BLOCKS }, (_, index) => ((index * 7919) % 2000) - 1000);

/** Speak all samples at their rate, say twice meanwhile that two speakers are one, then finish. */
async function speak(link: Link, random: () => number): Promise<Run> {
  const { clock, server, store, events, connection } = rig(link, random, { firstAttempts: 1000 });
  connection.start();
  for (let block = 0; block < BLOCKS; block++) {
    connection.send(Int16Array.from(samples.slice(block * BLOCK, (block + 1) * BLOCK)));
    if (block === 15) connection.mergeSpeakers("S03", "S02");
    if (block === 25) connection.mergeSpeakers("S02", "S01");
    clock.run(clock.now() + (1000 * BLOCK) / RATE);
  }
  let ended: EndReason | null = null;
  const finished = connection.finish().then((reason) => {
    ended = reason;
  });
  clock.run(clock.now() + 600_000);
  await Promise.race([finished, Promise.resolve()]);
  await Promise.resolve();
  return { server, store, events, ended };
}

function expectWhole({ server, store, events, ended }: Run, undisturbed: Run): void {
  expect(ended).toBe("finished");
  expect(server.sessions.at(-1)?.samples).toEqual(samples);
  expect(store.segments.map(({ text }) => text)).toEqual(undisturbed.store.segments.map(({ text }) => text));
  expect(store.live).toEqual([]);
  expect(answers(events)).toEqual(["S03 is S02", "S02 is S01"]);
}

describe("a connection that is cut", () => {
  test("loses nothing and doubles nothing, wherever one cut falls", async () => {
    const undisturbed = await speak(steady, () => 0.5);
    expect(undisturbed.server.sessions[0]?.samples).toEqual(samples);
    for (let point = 0; ; point++) {
      let deliveries = 0;
      const run = await speak({ delay_ms: () => 20, cut: () => deliveries++ === point }, () => 0.5);
      expectWhole(run, undisturbed);
      if (deliveries <= point) {
        expect(point).toBeGreaterThan(100);
        break;
      }
    }
  });

  test("loses nothing and doubles nothing under 300 seeds of many cuts and delays", async () => {
    const undisturbed = await speak(steady, () => 0.5);
    for (let seed = 1; seed <= 300; seed++) {
      const random = seeded(seed);
      const rate = random() * 0.15;
      let cuts = 0;
      const link: Link = {
        delay_ms: () => random() * 120,
        cut: () => cuts < 40 && random() < rate && ++cuts > 0,
      };
      expectWhole(await speak(link, random), undisturbed);
    }
  });
});

describe("a session that the server forgot", () => {
  test("is replaced, and the rest of the audio goes on at its place in time", () => {
    const { clock, server, store, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    connection.send(Int16Array.from(samples.slice(0, 1600)));
    clock.run(500);
    server.expired.add("token-0");
    sockets[0]?.end(1006);
    clock.run(600);
    connection.send(Int16Array.from(samples.slice(1600, 3200)));
    clock.run(5000);
    void connection.finish();
    clock.run(10_000);
    expect(events.filter(({ kind }) => kind === "session_lost")).toHaveLength(1);
    expect(server.sessions.map(({ samples: got }) => got)).toEqual([samples.slice(0, 1600), samples.slice(1600, 3200)]);
    expect(store.segments.map(({ start_s }) => start_s)).toEqual([0, 700 / RATE, 1600 / RATE, 2300 / RATE, 3000 / RATE]);
  });

  test("is not asked for again after the server restarts", () => {
    const { clock, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    sockets[0]?.end(1012);
    clock.run(2000);
    expect(sockets[1]?.url).not.toContain("resume");
    expect(connection.state).toBe("live");
  });

  test("because nobody spoke is opened again by the next audio", () => {
    const { clock, server, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    sockets[0]?.end(4408);
    clock.run(60_000);
    expect(connection.state).toBe("idle");
    expect(sockets).toHaveLength(1);
    connection.send(Int16Array.of(1, 2, 3));
    clock.run(61_000);
    expect(server.sessions[1]?.samples).toEqual([1, 2, 3]);
  });
});

describe("a connection", () => {
  test("keeps audio spoken before the server answers", () => {
    const { clock, server, connection } = rig({ ...steady, delay_ms: () => 3000 }, () => 0.5);
    connection.send(Int16Array.of(1, 2));
    connection.send(Int16Array.of(3));
    clock.run(30_000);
    expect(server.sessions[0]?.samples).toEqual([1, 2, 3]);
  });

  test("holds audio back while the socket is full", () => {
    const { clock, sockets, connection } = rig({ ...steady, delay_ms: () => 200 }, () => 0.5);
    connection.start();
    clock.run(2000);
    for (let index = 0; index < 40; index++) connection.send(new Int16Array(8000));
    expect(sockets[0]?.bufferedAmount).toBeLessThan(160_000);
    expect(connection.backlog_s).toBe(20);
    clock.run(20_000);
    expect(connection.backlog_s).toBe(0);
  });

  test("has little on its way when the socket does not tell what it holds", () => {
    let isStalled = false;
    const link: Link = { delay_ms: () => (isStalled ? 5000 : 20), cut: () => false };
    const { clock, server, sockets, connection } = rig(link, () => 0.5);
    connection.start();
    clock.run(1000);
    Object.defineProperty(sockets[0], "bufferedAmount", { get: () => undefined, set: () => {} });
    isStalled = true;
    for (let index = 0; index < 60; index++) connection.send(new Int16Array(8000));
    clock.run(1001);
    isStalled = false;
    clock.run(6010);
    expect(server.sessions[0]?.samples.length).toBe(10 * RATE);
    clock.run(60_000);
    expect(connection.backlog_s).toBe(0);
  });

  test("lets go who waits for the server as soon as it is near", async () => {
    const { clock, connection } = rig(steady, () => 0.5);
    connection.start();
    connection.send(new Int16Array(4 * RATE));
    const order: string[] = [];
    const near = connection.drained(3).then(() => order.push("near"));
    const all = connection.drained(0).then(() => order.push("all"));
    await connection.drained(4).then(() => order.push("now"));
    expect(order).toEqual(["now"]);
    clock.run(10_000);
    await Promise.all([near, all]);
    expect(order).toEqual(["now", "near", "all"]);
  });

  test("lets go who waits for the server when it is closed", async () => {
    const { connection } = rig(steady, () => 0.5);
    connection.send(new Int16Array(RATE));
    const drained = connection.drained(0);
    connection.abort();
    await drained;
    await connection.drained(0);
    expect(connection.state).toBe("closed");
  });

  test("comes back at once and for the same session when the network has changed", () => {
    let isDead = false;
    const link: Link = { delay_ms: () => (isDead ? 1e9 : 20), cut: () => false };
    const { clock, server, events, sockets, connection } = rig(link, () => 0.5);
    connection.start();
    connection.send(Int16Array.of(1, 2));
    clock.run(500);
    isDead = true;
    connection.send(Int16Array.of(3));
    clock.run(1000);
    isDead = false;
    connection.networkChanged();
    clock.run(1100);
    expect(sockets).toHaveLength(2);
    expect(connection.state).toBe("live");
    expect(server.sessions.map(({ samples: got }) => got)).toEqual([[1, 2, 3]]);
    expect(events.filter(({ kind }) => kind === "session_lost")).toEqual([]);
  });

  test("does not care for networks before it starts and after it ends", () => {
    const { sockets, connection } = rig(steady, () => 0.5);
    connection.networkChanged();
    expect(sockets).toHaveLength(0);
    connection.start();
    connection.abort();
    connection.networkChanged();
    expect(sockets).toHaveLength(1);
  });

  test("keeps positions and reports the loss when the backlog overflows", () => {
    const { clock, server, events, sockets, connection } = rig(steady, () => 0.5, { backlog_s: 0.1 });
    connection.start();
    connection.send(new Int16Array(800).fill(1));
    clock.run(500);
    sockets[0]?.end(1006);
    clock.run(525);
    expect(connection.state).toBe("waiting");
    connection.send(new Int16Array(3200).fill(2));
    clock.run(5000);
    const silence = Array(1600).fill(0);
    const expected = [...Array(800).fill(1), ...silence, ...Array(1600).fill(2)];
    expect(server.sessions[0]?.samples).toEqual(expected);
    expect(events.filter(({ kind }) => kind === "audio_lost")).toEqual([
      { kind: "audio_lost", start_s: 0.05, end_s: 0.15 },
    ]);
  });

  test("leaves a socket that is silent while it owes an answer", () => {
    let isDead = false;
    const link: Link = { delay_ms: () => (isDead ? 1e9 : 20), cut: () => false };
    const { clock, server, sockets, connection } = rig(link, () => 0.5);
    connection.start();
    clock.run(100_000);
    expect(sockets).toHaveLength(1); // silence alone is no reason
    isDead = true;
    connection.send(Int16Array.of(1));
    clock.run(101_000);
    expect(sockets).toHaveLength(1);
    isDead = false;
    clock.run(115_000);
    expect(sockets).toHaveLength(2);
    expect(connection.backlog_s).toBe(0);
    expect(server.sessions.map(({ samples: got }) => got)).toEqual([[1]]);
  });

  test("comes back for the events that are missing when a sequence number is skipped", () => {
    const { clock, server, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    connection.send(new Int16Array(700));
    clock.run(70);
    sockets[0]?.push({ type: "moss.warning", code: "later", message: "", moss: { seq: 99 } });
    clock.run(10_000);
    expect(sockets).toHaveLength(2);
    expect(server.sessions).toHaveLength(1);
    const seqs = events.flatMap((event) => (event.kind === "server" ? (event.event.moss?.seq ?? []) : []));
    expect(seqs).toEqual(seqs.map((_, index) => index + 1));
    expect(seqs.length).toBeGreaterThan(5);
  });

  test("says so where there is no WebSocket", () => {
    vi.stubGlobal("WebSocket", undefined);
    const connection = new Connection({ url: "ws://server/v1/realtime", rate_hz: RATE, onEvent: () => {} });
    expect(() => connection.start()).toThrow("openSocket");
    vi.unstubAllGlobals();
  });

  test("sends its key as a subprotocol and its query in the address", () => {
    const sockets: FakeSocket[] = [];
    const clock = new FakeClock(() => 0.5);
    const connection = new Connection({
      url: "ws://server/v1/realtime",
      rate_hz: 48000,
      key: "secret",
      query: { preset: "captions" },
      clock,
      onEvent: () => {},
      openSocket: (url, protocols) => {
        const socket = new FakeSocket(url, protocols, clock, steady, new Server());
        sockets.push(socket);
        return socket;
      },
    });
    connection.start();
    expect(sockets[0]?.protocols).toEqual(["realtime", "openai-insecure-api-key.secret"]);
    expect(sockets[0]?.url).toBe("ws://server/v1/realtime?intent=transcription&preset=captions");
  });

  test.each([
    [1008, "refused"],
    [1009, "refused"],
    [4410, "refused"],
    [4409, "taken_over"],
  ])("does not come back after close code %i", (code, reason) => {
    const { clock, events, sockets, connection } = rig(steady, () => 0.5);
    connection.start();
    clock.run(200);
    sockets[0]?.end(code);
    clock.run(60_000);
    expect(sockets).toHaveLength(1);
    expect(events.at(-1)).toMatchObject({ kind: "closed", reason });
  });

  test("gives up when the server is never reached", () => {
    const { clock, events, sockets, connection } = rig({ delay_ms: () => 1, cut: () => true }, () => 0.5);
    connection.start();
    clock.run(60_000);
    expect(sockets).toHaveLength(5);
    expect(events.at(-1)).toMatchObject({ kind: "closed", reason: "unreachable" });
  });

  test("waits longer after each failed attempt, up to a limit", () => {
    let isDown = false;
    const { clock, events, sockets, connection } = rig({ delay_ms: () => 1, cut: () => isDown }, () => 1);
    connection.start();
    clock.run(100);
    isDown = true;
    sockets[0]?.end(1006);
    clock.run(60_000);
    const waits = events.flatMap((event) => (event.kind === "state" && event.retry_ms ? [event.retry_ms] : []));
    expect(waits.slice(0, 8)).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
  });

  test("ends as incomplete when the end of the audio is never confirmed", async () => {
    const { clock, connection } = rig({ delay_ms: () => 1e9, cut: () => false }, () => 0.5);
    connection.send(Int16Array.of(1));
    const ended = connection.finish();
    clock.run(40_000);
    expect(await ended).toBe("incomplete");
  });
});
