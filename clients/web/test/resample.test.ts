import { describe, expect, test } from "vitest";
import { Resampler } from "../src/core/resample";

const tone = (rate_hz: number, frequency_hz: number, duration_s: number) =>
  Float32Array.from({ length: rate_hz * duration_s }, (_, index) => Math.sin((2 * Math.PI * frequency_hz * index) / rate_hz));

const loudest = (samples: Float32Array) => samples.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), 0);

describe("the resampler", () => {
  test.each([44100, 22050, 96000, 32000, 11025])("keeps a tone of 1 kHz from %i Hz in place", (rate) => {
    const output = new Resampler(rate, 16000).push(tone(rate, 1000, 1));
    const ideal = tone(16000, 1000, 1);
    const error = output.map((sample, index) => sample - (ideal[index] ?? 0)).slice(200, -200);
    expect(loudest(error)).toBeLessThan(0.003);
  });

  test("removes what the lower rate cannot hold", () => {
    const output = new Resampler(44100, 16000).push(tone(44100, 9500, 1));
    expect(loudest(output.slice(200))).toBeLessThan(0.002);
  });

  test("gives the same samples however the input is cut", () => {
    const input = tone(44100, 440, 0.5);
    const whole = new Resampler(44100, 16000).push(input);
    const resampler = new Resampler(44100, 16000);
    const pieces: number[] = [];
    for (let at = 0; at < input.length; at += 128) pieces.push(...resampler.push(input.slice(at, at + 128)));
    expect(pieces).toEqual([...whole]);
    expect(Math.abs(pieces.length - 8000)).toBeLessThan(20);
  });
});
