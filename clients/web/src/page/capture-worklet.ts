/**
 * The audio thread: mixes the microphone to mono, brings it to the rate of the stream, and posts
 * blocks of about 40 ms as 16-bit samples.
 */

import type { CaptureBlock, CaptureOptions } from "./capture";
import { Resampler } from "../core/resample";

// The audio thread's own names, which TypeScript's DOM library leaves out.
declare const sampleRate: number;
declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}
declare function registerProcessor(name: string, processor: unknown): void;

const BLOCK_S = 0.04;

class CaptureProcessor extends AudioWorkletProcessor {
  readonly #resampler: Resampler | null;
  readonly #block: Int16Array;
  #filled = 0;
  #peak = 0;

  constructor({ processorOptions }: { processorOptions: CaptureOptions }) {
    super();
    const { rate_hz } = processorOptions;
    this.#resampler = rate_hz === sampleRate ? null : new Resampler(sampleRate, rate_hz);
    this.#block = new Int16Array(Math.round(BLOCK_S * rate_hz));
  }

  process([channels]: Float32Array[][]): boolean {
    if (!channels?.[0]) return true;
    const mono = mix(channels);
    for (const sample of this.#resampler?.push(mono) ?? mono) this.#add(sample);
    return true;
  }

  #add(sample: number): void {
    const clipped = Math.max(-1, Math.min(1, sample));
    this.#peak = Math.max(this.#peak, Math.abs(clipped));
    this.#block[this.#filled++] = Math.round(clipped * 32767);
    if (this.#filled < this.#block.length) return;
    const message: CaptureBlock = { samples: this.#block.slice(), peak: this.#peak };
    this.port.postMessage(message, [message.samples.buffer]);
    this.#filled = 0;
    this.#peak = 0;
  }
}

function mix(channels: Float32Array[]): Float32Array {
  const first = channels[0] as Float32Array;
  if (channels.length === 1) return first;
  return first.map((_, index) => channels.reduce((sum, channel) => sum + (channel[index] ?? 0), 0) / channels.length);
}

registerProcessor("capture", CaptureProcessor);
