import { describe, expect, test } from "vitest";
import type { CaptureEvents } from "../src/page/capture";
import { Microphone, type OpenMicrophone, type Trouble } from "../src/page/microphone";
import { FakeClock } from "./network";

const block = { samples: Int16Array.of(1), peak: 0.5 };

/** A device that opens, unless it is told not to. */
class FakeDevice implements OpenMicrophone {
  readonly rate_hz = 48000;
  isRunning = true;
  isClosed = false;

  constructor(
    readonly events: CaptureEvents,
    readonly asked_hz: number | null,
  ) {}

  async pause(): Promise<void> {
    this.isRunning = false;
    this.events.onHeld(true); // As a context that is suspended says.
  }

  async resume(): Promise<void> {
    this.isRunning = true;
    this.events.onHeld(false);
  }

  async close(): Promise<void> {
    this.isClosed = true;
  }
}

/** All that was promised until now has happened. */
const settled = async () => {
  for (let turn = 0; turn < 10; turn++) await Promise.resolve();
};

async function rig() {
  const clock = new FakeClock(() => 0.5);
  const devices = new EventTarget();
  const opened: FakeDevice[] = [];
  const troubles: (Trouble | null)[] = [];
  const state = { isThere: true, blocks: 0 };
  const microphone = new Microphone({
    open: async (events, rate_hz) => {
      if (!state.isThere) throw new Error("no device");
      const device = new FakeDevice(events, rate_hz);
      opened.push(device);
      return device;
    },
    devices,
    onBlock: () => (state.blocks += 1),
    onTrouble: (trouble) => troubles.push(trouble),
    clock,
  });
  const rate_hz = await microphone.open();
  const newest = () => opened.at(-1) as FakeDevice;
  /** Let time pass, with blocks as they come or without. */
  const wait = async (duration_ms: number, hasBlocks: boolean) => {
    const end_ms = clock.now() + duration_ms;
    while (clock.now() < end_ms) {
      clock.run(Math.min(end_ms, clock.now() + 500));
      if (hasBlocks) newest().events.onBlock(block);
      await settled();
    }
  };
  return { microphone, rate_hz, devices, opened, newest, troubles, state, wait, clock };
}

describe("a microphone", () => {
  test("hands on its blocks and stays open while they come", async () => {
    const { rate_hz, opened, troubles, state, wait } = await rig();
    await wait(60_000, true);
    expect(rate_hz).toBe(48000);
    expect(state.blocks).toBe(120);
    expect(opened).toHaveLength(1);
    expect(troubles).toEqual([]);
  });

  test("fails to open as its device does", async () => {
    const microphone = new Microphone({
      open: () => Promise.reject(new Error("denied")),
      devices: undefined,
      onBlock: () => {},
      onTrouble: () => {},
    });
    await expect(microphone.open()).rejects.toThrow("denied");
  });

  test("takes another device at the same rate when its own is unplugged", async () => {
    const { opened, newest, troubles, state } = await rig();
    newest().events.onEnded();
    await settled();
    expect(opened).toHaveLength(2);
    expect(opened[0]?.isClosed).toBe(true);
    expect(newest().asked_hz).toBe(48000);
    newest().events.onBlock(block);
    opened[0]?.events.onBlock(block); // too late: it is not listened to any more
    expect(state.blocks).toBe(1);
    expect(troubles).toEqual([]);
  });

  test("says that it is gone, and goes on when a device comes", async () => {
    const { devices, newest, troubles, state } = await rig();
    state.isThere = false;
    newest().events.onEnded();
    await settled();
    expect(troubles).toEqual(["gone"]);
    state.isThere = true;
    devices.dispatchEvent(new Event("devicechange"));
    await settled();
    newest().events.onBlock(block);
    expect(troubles).toEqual(["gone", null]);
    expect(state.blocks).toBe(1);
  });

  test("tries again by itself after a call that took the device", async () => {
    const { opened, newest, troubles, state, wait } = await rig();
    state.isThere = false;
    newest().events.onEnded();
    await wait(30_000, false);
    state.isThere = true;
    await wait(5_500, false);
    expect(opened).toHaveLength(2);
    newest().events.onBlock(block);
    expect(troubles).toEqual(["gone", null]);
  });

  test("opens anew when the browser lets it sleep without a word", async () => {
    const { opened, wait } = await rig();
    await wait(2_000, true);
    await wait(4_000, false);
    expect(opened).toHaveLength(2);
  });

  test("does not take a page that slept for a device that does", async () => {
    const { opened, clock, newest, wait } = await rig();
    await wait(2_000, true);
    const after = clock.after.bind(clock);
    clock.after = (delay_ms, action) => after(delay_ms + 60_000, action); // timers do not run meanwhile
    await wait(2_000, true);
    clock.after = after;
    await wait(60_000, false);
    newest().events.onBlock(block);
    await wait(2_000, true);
    expect(opened).toHaveLength(1);
  });

  test.each(["held", "muted"] as const)("tells when it is %s and when no more, and stays", async (trouble) => {
    const { opened, newest, troubles, wait } = await rig();
    const { onHeld, onMuted } = newest().events;
    const tell = trouble === "held" ? onHeld : onMuted;
    tell(true);
    await wait(60_000, false);
    tell(false);
    expect(troubles).toEqual([trouble, null]);
    expect(opened).toHaveLength(1);
  });

  test("is in no trouble while it is paused, and listens again after it", async () => {
    const { microphone, opened, newest, troubles, state, wait } = await rig();
    await microphone.pause();
    newest().events.onBlock(block);
    await wait(60_000, false);
    expect(state.blocks).toBe(0);
    expect(newest().isRunning).toBe(false);
    await microphone.resume();
    newest().events.onBlock(block);
    expect(state.blocks).toBe(1);
    expect(opened).toHaveLength(1);
    expect(troubles).toEqual([]);
  });

  test("that was unplugged while paused opens again without listening", async () => {
    const { microphone, opened, newest, troubles } = await rig();
    await microphone.pause();
    newest().events.onEnded();
    await settled();
    expect(opened).toHaveLength(2);
    expect(newest().isRunning).toBe(false);
    expect(troubles).toEqual([]);
  });

  test("goes on at once when it is woken", async () => {
    const { microphone, newest, troubles } = await rig();
    newest().isRunning = false;
    newest().events.onHeld(true);
    await microphone.wake();
    expect(newest().isRunning).toBe(true);
    expect(troubles).toEqual(["held", null]);
  });

  test("that is closed leaves no device open and says no more", async () => {
    const { microphone, devices, opened, newest, troubles, state, wait } = await rig();
    state.isThere = false;
    newest().events.onEnded();
    await settled();
    state.isThere = true;
    const waking = microphone.wake(); // a device is being opened
    await microphone.close();
    await waking;
    devices.dispatchEvent(new Event("devicechange"));
    await wait(60_000, false);
    expect(opened.every(({ isClosed }) => isClosed)).toBe(true);
    expect(troubles).toEqual(["gone", null]);
  });
});
