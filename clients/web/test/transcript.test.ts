import { describe, expect, test } from "vitest";
import { TranscriptStore, render, type ServerEvent } from "../src/core";

const ITEM = { item_id: "item_1", content_index: 0 };
const TRANSCRIPTION = "conversation.item.input_audio_transcription";

const segment = (id: string, speaker: string, start: number, end: number, text: string): ServerEvent => ({
  ...ITEM, type: `${TRANSCRIPTION}.segment`, id, speaker, start, end, text,
});
const completed = (transcript: string): ServerEvent => ({ ...ITEM, type: `${TRANSCRIPTION}.completed`, transcript });
const hypothesis = (revision: number, committed: string, partial: string): ServerEvent => ({
  ...ITEM,
  type: "moss.hypothesis",
  revision,
  committed_text: committed,
  partial_text: partial,
  segments: [
    { speaker: "S01", start: 0, end: 1, text: committed, committed: true },
    { speaker: "S02", start: 1, end: 2, text: partial, committed: false },
  ],
  lag_ms: 100,
});

function storeOf(...events: ServerEvent[]): TranscriptStore {
  const store = new TranscriptStore();
  events.forEach((event) => store.apply(event, 10));
  return store;
}

describe("the transcript", () => {
  test("shows the newest hypothesis only", () => {
    const store = storeOf(hypothesis(2, "well", "yes"), hypothesis(1, "", "old"));
    expect(store.live).toEqual([
      { speaker: "S01", start_s: 10, end_s: 11, text: "well", committed: true },
      { speaker: "S02", start_s: 11, end_s: 12, text: "yes", committed: false },
    ]);
    expect(store.segments).toEqual([]);
  });

  test("replaces the hypothesis by finals piece by piece", () => {
    const store = storeOf(hypothesis(1, "well", "yes"), segment("a", "S01", 0, 1, "Well,"));
    expect(store.live.map(({ text }) => text)).toEqual(["yes"]);
    store.apply(segment("b", "S02", 1, 2, "yes."), 10);
    store.apply(completed("Well, yes."), 10);
    store.apply(hypothesis(3, "late", "late"), 10);
    expect(store.live).toEqual([]);
    expect(store.segments.map(({ text, start_s }) => [text, start_s])).toEqual([["Well,", 10], ["yes.", 11]]);
    expect(store.speakers).toEqual(["S01", "S02"]);
  });

  test("takes the text of a server without segments", () => {
    const store = storeOf(
      { ...ITEM, type: "input_audio_buffer.speech_started", audio_start_ms: 500 },
      { ...ITEM, type: `${TRANSCRIPTION}.delta`, delta: "good " },
      { ...ITEM, type: `${TRANSCRIPTION}.delta`, delta: "day" },
    );
    expect(store.live.map(({ text }) => text)).toEqual(["good day"]);
    store.apply({ ...ITEM, type: "input_audio_buffer.speech_stopped", audio_end_ms: 1500 }, 10);
    store.apply(completed("Good day."), 10);
    expect(store.segments).toEqual([{ speaker: "", start_s: 10.5, end_s: 11.5, text: "Good day." }]);
    expect(store.live).toEqual([]);
  });

  test("renames a speaker everywhere", () => {
    const store = storeOf(segment("a", "S02", -2, -1, "Hello."), hypothesis(1, "well", "yes"));
    const before = store.segments;
    store.apply({ type: "moss.relabel", speaker: "S02", replaced_by: "S01" }, 10);
    expect(store.segments.map(({ speaker }) => speaker)).toEqual(["S01"]);
    expect(store.live.map(({ speaker, committed }) => [speaker, committed])).toEqual([["S01", true], ["S01", false]]);
    expect(store.speakers).toEqual(["S01"]);
    expect(store.segments).not.toBe(before); // all of it is to be drawn again
  });

  test("keeps what was heard when the session is lost", () => {
    const store = storeOf(hypothesis(1, "well", "yes"));
    store.endSession();
    expect(store.segments.map(({ text }) => text)).toEqual(["well", "yes"]);
    expect(store.live).toEqual([]);
  });

  test("drops an utterance that failed", () => {
    const failed = { ...ITEM, type: `${TRANSCRIPTION}.failed`, error: { type: "server_error", message: "" } } as const;
    expect(storeOf(hypothesis(1, "well", "yes"), failed).live).toEqual([]);
  });
});

describe("a rendered transcript", () => {
  const segments = storeOf(
    segment("b", "S02", 3661.5, 3662, "Is 1 < 2 --> yes?"),
    segment("a", "S01", 0, 1.25, " Good\nday. "),
    segment("c", "", 5, 5, " "),
  ).segments;

  test.each([
    ["txt", "S02 [3671.50-3672.00] Is 1 < 2 --> yes?\nS01 [10.00-11.25] Good day.\n[15.00-15.00] \n"],
    ["srt", "1\n00:00:10,000 --> 00:00:11,250\nS01: Good day.\n\n2\n01:01:11,500 --> 01:01:12,000\nS02: Is 1 < 2 -> yes?\n\n"],
    ["vtt", "WEBVTT\n\n00:00:10.000 --> 00:00:11.250\n<v S01>Good day.\n\n01:01:11.500 --> 01:01:12.000\n<v S02>Is 1 &lt; 2 --&gt; yes?\n\n"],
  ] as const)("as %s is what the command line writes", (format, expected) => {
    expect(render(segments, format)).toBe(expected);
  });

  test("as json has every field", () => {
    expect(JSON.parse(render(segments, "json")).segments).toEqual(segments);
  });
});
