import { describe, expect, test } from "vitest";
import { FakeClock, FakeSocket, Server } from "../../web/test/network";
import { LiveCaptions } from "../src/captions";
import { toPcm } from "../src/native";
import { FakeMicrophone } from "./fake-microphone";

const URL_ = "ws://server/v1/realtime";
const quiet = () => new Array<number>(700).fill(0);

/** All that was promised until now has happened. */
const settled = async () => {
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
};

function rig() {
  const clock = new FakeClock(() => 0.5);
  const server = new Server();
  const microphone = new FakeMicrophone();
  const sockets: FakeSocket[] = [];
  const network = { isDown: false };
  const link = { delay_ms: () => 20, cut: () => network.isDown };
  const captions = new LiveCaptions({
    microphone,
    connection: {
      clock,
      openSocket: (url, protocols) => {
        const socket = new FakeSocket(url, protocols, clock, link, server);
        sockets.push(socket);
        return socket;
      },
    },
  });
  const wait = async (duration_ms: number) => {
    await settled();
    clock.run(clock.now() + duration_ms);
    await settled();
  };
  return { captions, clock, microphone, network, server, sockets, wait };
}

describe("captions of an app", () => {
  test("show what is heard and end with all of it", async () => {
    const { captions, microphone, server, sockets, wait } = rig();
    await captions.start({ url: URL_, key: "secret", query: { participant: "Ana" } });
    expect(captions.phase).toBe("listening");
    expect(microphone.starts).toEqual([16000]);
    microphone.speak(...quiet(), 1);
    await wait(1000);
    expect(captions.store.segments).toHaveLength(1);
    expect(captions.lag_ms).toBe(0);
    expect(sockets[0]?.url).toContain("preset=captions&participant=Ana");
    expect(sockets[0]?.protocols).toContain("openai-insecure-api-key.secret");
    const stopped = captions.stop();
    await wait(5000);
    await stopped;
    expect(captions.phase).toBe("off");
    expect(microphone.isRunning).toBe(false);
    expect(captions.problem).toBeNull();
    expect(captions.store.segments.map(({ text }) => text)).toEqual(["0", "32767"]);
    expect(server.sessions[0]?.samples).toHaveLength(701);
  });

  test("do not start without permission", async () => {
    const { captions, microphone, sockets } = rig();
    microphone.isAllowed = false;
    await captions.start({ url: URL_ });
    expect(captions.phase).toBe("off");
    expect(captions.problem).toBe("denied");
    expect(sockets).toHaveLength(0);
  });

  test("go on by themselves after a call", async () => {
    const { captions, microphone, server, wait } = rig();
    await captions.start({ url: URL_ });
    microphone.speak(1);
    microphone.interrupt(true);
    expect(captions.phase).toBe("interrupted");
    microphone.speak(1, 1); // what the call says is not ours
    await wait(60_000);
    microphone.interrupt(false);
    await settled();
    expect(captions.phase).toBe("listening");
    microphone.speak(0);
    await wait(1000);
    expect(server.sessions.map(({ samples }) => samples)).toEqual([[32767, 0]]);
  });

  test("go on when the app is in front again and the microphone is free", async () => {
    const { captions, microphone } = rig();
    microphone.isBusy = true;
    await captions.start({ url: URL_ });
    expect(captions.phase).toBe("interrupted");
    await captions.wake();
    expect(captions.phase).toBe("interrupted");
    microphone.isBusy = false;
    await captions.wake();
    expect(captions.phase).toBe("listening");
  });

  test("take the next microphone when the headset is taken off", async () => {
    const { captions, microphone, server, wait } = rig();
    await captions.start({ url: URL_ });
    microphone.speak(1);
    microphone.changeRoute();
    microphone.changeRoute(); // systems tell it several times
    await settled();
    expect(microphone.starts).toHaveLength(2);
    expect(captions.phase).toBe("listening");
    microphone.speak(0);
    await wait(1000);
    expect(server.sessions[0]?.samples).toEqual([32767, 0]);
  });

  test("lose nothing when the network changes", async () => {
    const { captions, microphone, network, server, sockets, wait } = rig();
    await captions.start({ url: URL_ });
    microphone.speak(1);
    await wait(1000);
    network.isDown = true;
    microphone.speak(0);
    await wait(3000);
    expect(captions.link).toBe("waiting");
    microphone.speak(1);
    expect(captions.backlog_s).toBeGreaterThan(0);
    network.isDown = false;
    captions.networkChanged();
    await wait(1000);
    expect(captions.link).toBe("live");
    expect(sockets.at(-1)?.url).toContain("resume=token-0");
    expect(server.sessions.map(({ samples }) => samples)).toEqual([[32767, 0, 32767]]);
  });

  test("take two speakers for one, also while the network is away", async () => {
    const { captions, microphone, network, server, wait } = rig();
    captions.mergeSpeakers("S02", "S01"); // nobody is heard yet
    await captions.start({ url: URL_ });
    microphone.speak(...quiet());
    await wait(1000);
    captions.mergeSpeakers("S01", "S02");
    await wait(1000);
    expect(captions.store.segments.map(({ speaker }) => speaker)).toEqual(["S02"]);
    network.isDown = true;
    captions.networkChanged();
    await wait(1000);
    captions.mergeSpeakers("S02", "S03");
    network.isDown = false;
    captions.networkChanged();
    await wait(1000);
    expect(captions.store.speakers).toEqual(["S03"]);
    expect(server.sessions[0]?.merges).toEqual(["S01 S02", "S02 S03"]);
  });

  test("say why they ended, let go of the microphone, and can start again", async () => {
    const { captions, microphone, sockets, wait } = rig();
    await captions.start({ url: URL_ });
    microphone.speak(...quiet());
    await wait(1000);
    sockets[0]?.end(1008);
    await wait(1000);
    expect(captions.phase).toBe("off");
    expect(captions.problem).toBe("refused");
    expect(microphone.isRunning).toBe(false);
    await captions.start({ url: URL_ });
    expect(captions.problem).toBeNull();
    microphone.speak(...quiet());
    await wait(1000);
    expect(captions.store.segments.map(({ start_s }) => start_s)).toEqual([0, 700 / 16000]);
  });

  test("stop at once when they are stopped twice", async () => {
    const { captions, wait } = rig();
    await captions.start({ url: URL_ });
    void captions.stop();
    void captions.stop();
    await wait(0);
    expect(captions.phase).toBe("off");
  });

  test("that are stopped while the microphone starts do not listen", async () => {
    const { captions, microphone, wait } = rig();
    await captions.start({ url: URL_ });
    microphone.changeRoute();
    const stopped = captions.stop();
    await wait(5000);
    await stopped;
    expect(captions.phase).toBe("off");
    expect(microphone.isRunning).toBe(false);
  });

  test("tell who listens of each change, until they no longer do", async () => {
    const { captions, wait } = rig();
    const versions: number[] = [];
    const leave = captions.subscribe(() => versions.push(captions.version()));
    await captions.start({ url: URL_ });
    const numHeard = versions.length;
    expect(numHeard).toBeGreaterThan(1);
    expect(versions).toEqual([...new Set(versions)]);
    leave();
    void captions.stop();
    await wait(5000);
    expect(captions.phase).toBe("off");
    expect(versions).toHaveLength(numHeard);
  });
});

test("samples are clipped and scaled as the server takes them", () => {
  expect([...toPcm(Float32Array.of(0, 1, -1, 2, -2, 0.5))]).toEqual([0, 32767, -32767, 32767, -32767, 16384]);
});
