/** The microphone as a stream of 16-bit blocks, at the rate of the audio context where possible. */

import { PCM_RATES_HZ, type PcmRate } from "../core";
import workletUrl from "./capture-worklet.ts?worker&url";

export interface CaptureOptions {
  rate_hz: number;
}

export interface CaptureBlock {
  samples: Int16Array;
  /** Loudest sample, 0 to 1. */
  peak: number;
}

/** What stands between the page and the microphone; `error` has the browser's own words. */
export type CaptureProblem = "insecure" | "unsupported" | "denied" | "missing" | "busy";

export class CaptureError extends Error {
  constructor(
    readonly problem: CaptureProblem,
    detail: string,
  ) {
    super(detail);
  }
}

export interface CaptureEvents {
  onBlock: (block: CaptureBlock) => void;
  /** The browser stopped the audio: after a call, in the background, or before a gesture. */
  onHeld: (isHeld: boolean) => void;
  /** The system gives silence: a call, a switch on the headset, the page in the background. */
  onMuted: (isMuted: boolean) => void;
  /** The microphone was unplugged, or its permission taken away. */
  onEnded: () => void;
}

const FALLBACK_RATE: PcmRate = 16000;
const HELD_AFTER_MS = 1000;

export class Capture {
  readonly rate_hz: PcmRate;
  readonly #context: AudioContext;
  readonly #stream: MediaStream;

  private constructor(context: AudioContext, stream: MediaStream, rate_hz: PcmRate) {
    this.#context = context;
    this.#stream = stream;
    this.rate_hz = rate_hz;
  }

  /**
   * Ask for the microphone and start. Call it from a gesture of the user.
   *
   * `rate_hz` is the rate of a stream that goes on; without one it follows the audio context.
   */
  static async open(events: CaptureEvents, rate_hz: PcmRate | null): Promise<Capture> {
    if (!window.isSecureContext) throw new CaptureError("insecure", "the page is not secure");
    if (!navigator.mediaDevices || !("AudioWorkletNode" in window)) {
      throw new CaptureError("unsupported", "no AudioWorklet");
    }
    // Made before anything is awaited: Safari lets only a gesture start a context.
    const context = new AudioContext();
    let stream: MediaStream | null = null;
    try {
      stream = await openMicrophone();
      await context.audioWorklet.addModule(workletUrl);
      return Capture.#connect(context, stream, events, rate_hz ?? rateOf(context));
    } catch (error) {
      stream?.getTracks().forEach((track) => track.stop());
      await context.close();
      throw error;
    }
  }

  static #connect(context: AudioContext, stream: MediaStream, events: CaptureEvents, rate_hz: PcmRate): Capture {
    const options: CaptureOptions = { rate_hz };
    const node = new AudioWorkletNode(context, "capture", {
      numberOfOutputs: 1,
      processorOptions: options,
    });
    node.port.onmessage = ({ data }: MessageEvent<CaptureBlock>) => events.onBlock(data);
    context.createMediaStreamSource(stream).connect(node);
    // Some browsers run only what leads to an output; the node writes silence there.
    node.connect(context.destination);
    const onState = () => events.onHeld(context.state !== "running" && context.state !== "closed");
    context.onstatechange = onState;
    for (const track of stream.getAudioTracks()) {
      track.addEventListener("ended", events.onEnded);
      track.addEventListener("mute", () => events.onMuted(true));
      track.addEventListener("unmute", () => events.onMuted(false));
    }
    const capture = new Capture(context, stream, rate_hz);
    if (context.state !== "running") {
      void capture.resume();
      window.setTimeout(onState, HELD_AFTER_MS); // It may take a moment by itself.
    }
    return capture;
  }

  /** Stop listening and keep the microphone. */
  async pause(): Promise<void> {
    this.#enable(false);
    await this.#unlessClosed(this.#context.suspend());
  }

  /** Go on after a pause, or after the browser stopped the audio. */
  async resume(): Promise<void> {
    this.#enable(true);
    try {
      // Whatever the state is: a pause may still be on its way.
      await this.#context.resume();
    } catch {
      // Closed meanwhile, or the call is not over: then it is still held, which was told.
    }
  }

  async close(): Promise<void> {
    this.#context.onstatechange = null;
    this.#stream.getTracks().forEach((track) => track.stop());
    await this.#context.close();
  }

  #enable(isEnabled: boolean): void {
    this.#stream.getTracks().forEach((track) => (track.enabled = isEnabled));
  }

  /** Closing a context fails what it was asked for before, which then does not matter. */
  async #unlessClosed(change: Promise<void>): Promise<void> {
    try {
      await change;
    } catch (error) {
      if (this.#context.state !== "closed") throw error;
    }
  }
}

function rateOf(context: AudioContext): PcmRate {
  return PCM_RATES_HZ.find((rate) => rate === context.sampleRate) ?? FALLBACK_RATE;
}

async function openMicrophone(): Promise<MediaStream> {
  try {
    // Echo cancellation would remove what the loudspeakers of this device play, such as the
    // other side of a meeting; noise suppression removes quiet speakers.
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: true };
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    const { name, message } = error as DOMException;
    if (name === "NotAllowedError" || name === "SecurityError") throw new CaptureError("denied", message);
    if (name === "NotFoundError" || name === "OverconstrainedError") throw new CaptureError("missing", message);
    throw new CaptureError("busy", message);
  }
}
