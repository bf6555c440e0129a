/** What an app's native audio module has to do. One is ready: `audioApiMicrophone`. */

export interface MicrophoneListener {
  /** Mono samples, -1 to 1, at the rate that was asked for. */
  onSamples(samples: Float32Array): void;
  /** A call or another app has the audio, or no longer has. */
  onInterrupted(isInterrupted: boolean): void;
  /** The microphone changed, such as a headset that was taken off: it has to be started again. */
  onRouteChanged(): void;
}

export interface NativeMicrophone {
  /** Ask the user, unless they were asked before. */
  requestPermission(): Promise<boolean>;
  /** Begin to listen at a rate in Hz; fails when another app does not let go of the microphone. */
  start(rate_hz: number, listener: MicrophoneListener): Promise<void>;
  /** After this nothing is told to the listener any more. */
  stop(): Promise<void>;
}

/** Samples as the server takes them. */
export function toPcm(samples: Float32Array): Int16Array {
  return Int16Array.from(samples, (sample) => Math.round(Math.max(-1, Math.min(1, sample)) * 32767));
}
