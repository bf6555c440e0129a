/**
 * What was said, from the events of a stream: segments that are final, and the utterances that
 * are still being heard. Times are seconds since the first sample of the stream.
 */

import type { Completed, FinalSegment, Hypothesis, HypothesisSegment, Relabel, ServerEvent } from "./protocol.js";

export interface Segment {
  /** Label of the server such as `S01`; empty when it gave none. */
  speaker: string;
  start_s: number;
  end_s: number;
  text: string;
}

/** A piece of an utterance that is not final; what is not committed may still change. */
export interface LiveSegment {
  speaker: string;
  start_s: number;
  end_s: number;
  text: string;
  committed: boolean;
}

interface LiveUtterance {
  revision: number;
  segments: LiveSegment[];
  /** Deltas so far, for servers without hypotheses. */
  words: string;
}

export class TranscriptStore {
  #segments: Segment[] = [];
  /** Utterances by item id, in order of appearance. */
  readonly #live = new Map<string, LiveUtterance>();
  readonly #spans = new Map<string, { start_s: number; end_s: number }>();
  /** Up to where an utterance is final; later hypotheses say it once more. */
  readonly #finalUntil = new Map<string, number>();
  readonly #done = new Set<string>();
  readonly #speakers: string[] = [];

  /** Final segments in the order in which they became final. */
  get segments(): readonly Segment[] {
    return this.#segments;
  }

  /** What is being heard now. */
  get live(): readonly LiveSegment[] {
    return [...this.#live.values()].flatMap((utterance) => utterance.segments);
  }

  /** Labels in order of appearance. */
  get speakers(): readonly string[] {
    return this.#speakers;
  }

  /** Take in a server event whose times start at `offset_s`; says whether anything changed. */
  apply(event: ServerEvent, offset_s: number): boolean {
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this.#spans.set(event.item_id, {
          start_s: event.audio_start_ms / 1000 + offset_s,
          end_s: event.audio_start_ms / 1000 + offset_s,
        });
        return false;
      case "input_audio_buffer.speech_stopped": {
        const span = this.#spans.get(event.item_id);
        if (span) span.end_s = event.audio_end_ms / 1000 + offset_s;
        return false;
      }
      case "moss.hypothesis":
        return this.#onHypothesis(event, offset_s);
      case "conversation.item.input_audio_transcription.delta":
        return this.#onDelta(event.item_id, event.delta ?? "");
      case "conversation.item.input_audio_transcription.segment":
        return this.#onSegment(event, offset_s);
      case "conversation.item.input_audio_transcription.completed":
        return this.#onCompleted(event);
      case "conversation.item.input_audio_transcription.failed":
        return this.#close(event.item_id);
      case "moss.relabel":
        return this.#onRelabel(event);
      default:
        return false;
    }
  }

  /**
   * The session is over: keep what was heard of its open utterances, for no final will come, and
   * forget its item ids, which the next session may use again.
   */
  endSession(): boolean {
    const open = this.live;
    open.forEach(({ committed: _, ...segment }) => this.#add(segment));
    for (const perItem of [this.#live, this.#spans, this.#finalUntil, this.#done]) perItem.clear();
    return open.length > 0;
  }

  #onHypothesis(event: Hypothesis, offset_s: number): boolean {
    const before = this.#live.get(event.item_id);
    if (this.#done.has(event.item_id) || (before && event.revision <= before.revision)) return false;
    const finalUntil = this.#finalUntil.get(event.item_id) ?? -Infinity;
    const segments = heard(event)
      .map(({ speaker, start, end, text, committed }) => ({
        speaker,
        start_s: start + offset_s,
        end_s: end + offset_s,
        text,
        committed,
      }))
      .filter((segment) => segment.start_s >= finalUntil);
    segments.forEach(({ speaker }) => this.#meet(speaker));
    this.#live.set(event.item_id, { revision: event.revision, segments, words: "" });
    return true;
  }

  #onDelta(itemId: string, delta: string): boolean {
    const before = this.#live.get(itemId);
    if (this.#done.has(itemId) || (before && before.revision >= 0)) return false;
    const words = (before?.words ?? "") + delta;
    const span = this.#spans.get(itemId) ?? { start_s: 0, end_s: 0 };
    const segments = [{ speaker: "", ...span, text: words, committed: true }];
    this.#live.set(itemId, { revision: -1, segments, words });
    return true;
  }

  #onSegment(event: FinalSegment, offset_s: number): boolean {
    const end_s = event.end + offset_s;
    this.#add({
      speaker: event.speaker,
      start_s: event.start + offset_s,
      end_s,
      text: event.text,
    });
    this.#finalUntil.set(event.item_id, end_s);
    const utterance = this.#live.get(event.item_id);
    if (utterance) utterance.segments = utterance.segments.filter(({ start_s }) => start_s >= end_s);
    return true;
  }

  #onCompleted(event: Completed): boolean {
    const text = event.transcript.trim();
    if (text && !this.#finalUntil.has(event.item_id) && !this.#done.has(event.item_id)) {
      const span = this.#spans.get(event.item_id) ?? { start_s: 0, end_s: 0 };
      this.#add({ speaker: "", ...span, text });
    }
    return this.#close(event.item_id);
  }

  #onRelabel({ speaker, replaced_by }: Relabel): boolean {
    const renamed = <T extends { speaker: string }>(segment: T): T =>
      segment.speaker === speaker ? { ...segment, speaker: replaced_by } : segment;
    this.#segments = this.#segments.map(renamed);
    for (const utterance of this.#live.values()) utterance.segments = utterance.segments.map(renamed);
    this.#meet(replaced_by);
    const index = this.#speakers.indexOf(speaker);
    if (index >= 0) this.#speakers.splice(index, 1);
    return true;
  }

  #add(segment: Segment): void {
    this.#segments.push(segment);
    this.#meet(segment.speaker);
  }

  #meet(speaker: string): void {
    if (speaker && !this.#speakers.includes(speaker)) this.#speakers.push(speaker);
  }

  #close(itemId: string): boolean {
    this.#done.add(itemId);
    this.#spans.delete(itemId);
    this.#finalUntil.delete(itemId);
    return this.#live.delete(itemId);
  }
}

/** Segments of a hypothesis, or its text alone where the model gave none. */
function heard(event: Hypothesis): HypothesisSegment[] {
  if (event.segments.length > 0) return event.segments;
  const piece = (text: string, committed: boolean) => ({ speaker: "", start: 0, end: 0, text, committed });
  return [piece(event.committed_text, true), piece(event.partial_text, false)].filter(({ text }) => text);
}
