/**
 * Sample rate conversion of a stream by windowed-sinc interpolation.
 *
 * Output sample n lies at input position n * from / to. The kernel cuts at 0.9 of the lower of the
 * two Nyquist frequencies, is tabulated, and read with linear interpolation between its entries.
 */

const ZERO_CROSSINGS = 16;
const STEPS_PER_CROSSING = 256;
const CUTOFF = 0.9;

export class Resampler {
  readonly #step: number;
  readonly #scale: number;
  readonly #reach: number;
  readonly #kernel: Float32Array;
  /** Input from absolute index `#first` on; zeros before the start of the stream. */
  #input: Float32Array;
  #first: number;
  #numOut = 0;

  /** Rates in Hz. */
  constructor(from_hz: number, to_hz: number) {
    this.#step = from_hz / to_hz;
    this.#scale = CUTOFF * Math.min(1, to_hz / from_hz);
    this.#reach = Math.ceil(ZERO_CROSSINGS / this.#scale);
    this.#kernel = tabulate();
    this.#first = -this.#reach;
    this.#input = new Float32Array(this.#reach);
  }

  /** Take input in and return the output that it completes. */
  push(samples: Float32Array): Float32Array {
    const joined = new Float32Array(this.#input.length + samples.length);
    joined.set(this.#input);
    joined.set(samples, this.#input.length);
    this.#input = joined;
    const last = this.#first + joined.length - 1 - this.#reach;
    const output: number[] = [];
    for (; this.#numOut * this.#step <= last; this.#numOut++) {
      output.push(this.#at(this.#numOut * this.#step));
    }
    const needed = Math.floor(this.#numOut * this.#step) - this.#reach;
    const spent = Math.min(Math.max(0, needed - this.#first), joined.length);
    this.#input = joined.slice(spent);
    this.#first += spent;
    return Float32Array.from(output);
  }

  #at(position: number): number {
    const from = Math.ceil(position - this.#reach);
    const to = Math.floor(position + this.#reach);
    let sum = 0;
    for (let index = from; index <= to; index++) {
      const place = Math.abs(position - index) * this.#scale * STEPS_PER_CROSSING;
      const entry = Math.floor(place);
      const left = this.#kernel[entry] ?? 0;
      const right = this.#kernel[entry + 1] ?? 0;
      sum += (this.#input[index - this.#first] ?? 0) * (left + (right - left) * (place - entry));
    }
    return sum * this.#scale;
  }
}

/** Half of a sinc under a Blackman window, from its centre outwards. */
function tabulate(): Float32Array {
  const length = ZERO_CROSSINGS * STEPS_PER_CROSSING + 1;
  return Float32Array.from({ length }, (_, index) => {
    const x = (Math.PI * index) / STEPS_PER_CROSSING;
    const w = (Math.PI * index) / (length - 1);
    const window = 0.42 + 0.5 * Math.cos(w) + 0.08 * Math.cos(2 * w);
    return (index === 0 ? 1 : Math.sin(x) / x) * window;
  });
}
