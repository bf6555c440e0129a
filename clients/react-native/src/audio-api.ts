/** The microphone by way of `react-native-audio-api`. */

import { Resampler } from "@moss-stream/client";
import { AudioManager, AudioRecorder } from "react-native-audio-api";
import type { MicrophoneListener, NativeMicrophone } from "./native";

const BLOCK_S = 0.05;
/** Changes after which the system goes on with another microphone; the rest are its own doing. */
const DEVICE_CHANGES: readonly string[] = ["NewDeviceAvailable", "OldDeviceUnavailable"];

class AudioApiMicrophone implements NativeMicrophone {
  #recorder: AudioRecorder | null = null;
  #subscriptions: { remove(): void }[] = [];

  async requestPermission(): Promise<boolean> {
    return (await AudioManager.requestRecordingPermissions()) === "Granted";
  }

  async start(rate_hz: number, listener: MicrophoneListener): Promise<void> {
    this.#observe(listener);
    AudioManager.setAudioSessionOptions({ iosCategory: "playAndRecord", iosOptions: ["allowBluetoothHFP"] });
    await AudioManager.setAudioSessionActivity(true);
    const recorder = new AudioRecorder();
    this.#recorder = recorder;
    const options = { sampleRate: rate_hz, bufferLength: Math.round(BLOCK_S * rate_hz), channelCount: 1 };
    let resampler: Resampler | null = null;
    check(
      recorder.onAudioReady(options, ({ buffer }) => {
        // Not each phone gives the rate that it is asked for, and the buffer is used again.
        const samples = buffer.getChannelData(0).slice();
        if (buffer.sampleRate === rate_hz) return listener.onSamples(samples);
        resampler ??= new Resampler(buffer.sampleRate, rate_hz);
        listener.onSamples(resampler.push(samples));
      }),
    );
    check(await recorder.start());
  }

  async stop(): Promise<void> {
    this.#subscriptions.forEach((subscription) => subscription.remove());
    this.#subscriptions = [];
    const recorder = this.#recorder;
    this.#recorder = null;
    recorder?.clearOnAudioReady();
    await recorder?.stop();
  }

  #observe(listener: MicrophoneListener): void {
    AudioManager.observeAudioInterruptions(true);
    const subscriptions = [
      AudioManager.addSystemEventListener("interruption", ({ type }) => listener.onInterrupted(type === "began")),
      AudioManager.addSystemEventListener("routeChange", ({ reason }) => {
        if (DEVICE_CHANGES.includes(reason)) listener.onRouteChanged();
      }),
    ];
    this.#subscriptions = subscriptions.filter((subscription) => subscription !== undefined);
  }
}

/** The module tells failures as results. */
function check(result: { status: string; message?: string }): void {
  if (result.status === "error") throw new Error(result.message);
}

/** The microphone of the phone; one is enough for an app. */
export function audioApiMicrophone(): NativeMicrophone {
  return new AudioApiMicrophone();
}
