/** Time and chance, handed in so that tests own both. */
export interface Clock {
  /** Call `action` once after `delay_ms`; the returned function cancels it. */
  after(delay_ms: number, action: () => void): () => void;
  /** Milliseconds since any fixed moment. */
  now(): number;
  /** A number in [0, 1). */
  random(): number;
}

// Every host of this module has these; the core is compiled without the types of any of them.
declare function setTimeout(action: () => void, delay_ms: number): unknown;
declare function clearTimeout(timer: unknown): void;

export const systemClock: Clock = {
  after(delay_ms, action) {
    const timer = setTimeout(action, delay_ms);
    return () => clearTimeout(timer);
  },
  now: () => Date.now(),
  random: () => Math.random(),
};

export interface BackoffOptions {
  first_ms: number;
  max_ms: number;
}

/**
 * Wait before a new attempt: doubles each time, then spread over half of its length so that the
 * clients of a restarted server do not all return at once.
 */
export function backoff_ms(attempt: number, random: number, options: BackoffOptions): number {
  const full = Math.min(options.max_ms, options.first_ms * 2 ** Math.min(attempt, 30));
  return full * (0.5 + 0.5 * random);
}
