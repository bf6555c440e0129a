/** The adapter on a fake of its native module. */

import { beforeEach, expect, test, vi } from "vitest";
import { audioApiMicrophone } from "../src/audio-api";
import type { MicrophoneListener } from "../src/native";

type Callback = (event: { buffer: { sampleRate: number; getChannelData(channel: number): Float32Array } }) => void;

/** What a phone does with the module. */
const phone = vi.hoisted(() => ({
  permission: "Granted",
  start: { status: "success" } as { status: string; message?: string },
  options: null as object | null,
  callback: null as Callback | null,
  isRunning: false,
  listeners: new Map<string, (event: object) => void>(),
}));

vi.mock("react-native-audio-api", () => ({
  AudioManager: {
    requestRecordingPermissions: async () => phone.permission,
    setAudioSessionOptions: () => {},
    setAudioSessionActivity: async () => true,
    observeAudioInterruptions: () => {},
    addSystemEventListener: (name: string, listener: (event: object) => void) => {
      phone.listeners.set(name, listener);
      return { remove: () => phone.listeners.delete(name) };
    },
  },
  AudioRecorder: class {
    onAudioReady(options: object, callback: Callback) {
      phone.options = options;
      phone.callback = callback;
      return { status: "success" };
    }
    clearOnAudioReady() {
      phone.callback = null;
    }
    async start() {
      phone.isRunning = phone.start.status === "success";
      return phone.start;
    }
    async stop() {
      phone.isRunning = false;
    }
  },
}));

const heard: unknown[] = [];
const listener: MicrophoneListener = {
  onSamples: (samples) => heard.push([...samples]),
  onInterrupted: (isInterrupted) => heard.push(isInterrupted),
  onRouteChanged: () => heard.push("route"),
};

/** The module uses one buffer again and again. */
function deliver(sampleRate: number, ...samples: number[]): void {
  const shared = Float32Array.from(samples);
  phone.callback?.({ buffer: { sampleRate, getChannelData: () => shared } });
  shared.fill(0);
}

beforeEach(() => {
  heard.length = 0;
  phone.permission = "Granted";
  phone.start = { status: "success" };
  phone.listeners.clear();
});

test("asks for permission", async () => {
  expect(await audioApiMicrophone().requestPermission()).toBe(true);
  phone.permission = "Denied";
  expect(await audioApiMicrophone().requestPermission()).toBe(false);
});

test("hands on samples of its own until it is stopped", async () => {
  const microphone = audioApiMicrophone();
  await microphone.start(16000, listener);
  expect(phone.options).toEqual({ sampleRate: 16000, bufferLength: 800, channelCount: 1 });
  deliver(16000, 0.5, -0.5);
  await microphone.stop();
  deliver(16000, 1);
  expect(heard).toEqual([[0.5, -0.5]]);
  expect(phone.isRunning).toBe(false);
  expect(phone.listeners.size).toBe(0);
});

test("brings the rate of the phone to the one that was asked for", async () => {
  await audioApiMicrophone().start(16000, listener);
  deliver(48000, ...new Array<number>(4800).fill(0.5));
  const samples = heard.flat() as number[];
  expect(samples.length).toBeGreaterThan(1500);
  expect(samples.length).toBeLessThanOrEqual(1600);
  expect(samples[800]).toBeCloseTo(0.5, 2);
});

test("tells of calls and of another microphone, and of nothing else", async () => {
  await audioApiMicrophone().start(16000, listener);
  phone.listeners.get("interruption")?.({ type: "began" });
  phone.listeners.get("interruption")?.({ type: "ended" });
  phone.listeners.get("routeChange")?.({ reason: "CategoryChange" });
  phone.listeners.get("routeChange")?.({ reason: "OldDeviceUnavailable" });
  expect(heard).toEqual([true, false, "route"]);
});

test("fails as the module fails, and still hears when the call is over", async () => {
  phone.start = { status: "error", message: "the microphone is taken" };
  await expect(audioApiMicrophone().start(16000, listener)).rejects.toThrow("the microphone is taken");
  phone.listeners.get("interruption")?.({ type: "ended" });
  expect(heard).toEqual([false]);
});
