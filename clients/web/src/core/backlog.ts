/**
 * Audio that the server has not acknowledged, kept by its sample position.
 *
 * Positions count from the first sample ever appended and never restart. What is acknowledged is
 * released; when the limit is reached the oldest audio goes, and reading it again yields silence
 * of the same length, so that every later sample keeps its position.
 */
export class Backlog {
  readonly #limit: number;
  readonly #chunks: { at: number; samples: Int16Array }[] = [];
  #start = 0;
  #end = 0;

  /** `limit`: the most samples that are kept. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Position of the oldest sample that is kept. */
  get start(): number {
    return this.#start;
  }

  /** Position after the newest sample. */
  get end(): number {
    return this.#end;
  }

  /** Add samples at the end. The array is kept, not copied. */
  append(samples: Int16Array): void {
    if (samples.length === 0) return;
    this.#chunks.push({ at: this.#end, samples });
    this.#end += samples.length;
    this.release(this.#end - this.#limit);
  }

  /** Forget what lies before `position`. */
  release(position: number): void {
    this.#start = Math.min(Math.max(this.#start, position), this.#end);
    let gone = 0;
    for (const { at, samples } of this.#chunks) {
      if (at + samples.length > this.#start) break;
      gone += 1;
    }
    this.#chunks.splice(0, gone);
  }

  /** Copy of up to `max` samples from `position` on; silence where the audio is forgotten. */
  read(position: number, max: number): Int16Array {
    const stop = Math.min(this.#end, position + max);
    const result = new Int16Array(Math.max(0, stop - position));
    for (const { at, samples } of this.#chunks) {
      if (at >= stop) break;
      const from = Math.max(at, position, this.#start);
      const to = Math.min(at + samples.length, stop);
      if (from < to) result.set(samples.subarray(from - at, to - at), from - position);
    }
    return result;
  }
}
