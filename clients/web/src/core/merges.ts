/**
 * Speakers whom somebody knows to be one person, until the server has answered.
 *
 * A socket may be lost with a request or with its answer on the way. What was not answered is sent
 * again on the next socket, in order, but not before the replay has brought the answers that were
 * missed: asked twice, the server would not know the first speaker any more.
 */

import type { MergeSpeakers, ServerEvent } from "./protocol.js";

/** Fields that an error about a request names; `type` comes from a server that knows no such request. */
const FIELDS: readonly unknown[] = ["speaker", "into", "type"];

export class Merges {
  readonly #waiting: MergeSpeakers[] = [];
  /** The first of those that wait: sent on the present socket, and not answered. */
  #numSent = 0;
  /** Number of the last event of the replay. */
  #replayUntil = 0;

  get areSent(): boolean {
    return this.#numSent === this.#waiting.length;
  }

  add(speaker: string, into: string): void {
    this.#waiting.push({ type: "moss.merge_speakers", speaker, into });
  }

  /** What to send now, for a client that has the events up to `lastSeq`. */
  take(lastSeq: number): MergeSpeakers[] {
    if (lastSeq < this.#replayUntil) return [];
    const fresh = this.#waiting.slice(this.#numSent);
    this.#numSent = this.#waiting.length;
    return fresh;
  }

  /** There is another socket, whose replay ends with the event `replayUntil`. */
  rewind(replayUntil: number): void {
    this.#numSent = 0;
    this.#replayUntil = replayUntil;
  }

  /** The server answers in the order in which it is asked. */
  observe(event: ServerEvent): void {
    let answered = -1;
    if (event.type === "moss.relabel") {
      answered = this.#waiting.findIndex(
        ({ speaker, into }) => speaker === event.speaker && into === event.replaced_by,
      );
    } else if (event.type === "error" && FIELDS.includes(event.error.param)) {
      answered = 0;
    }
    if (answered < 0 || answered >= this.#waiting.length) return;
    this.#waiting.splice(answered, 1);
    if (answered < this.#numSent) this.#numSent -= 1;
  }

  /** The labels mean nothing any more. */
  clear(): void {
    this.#waiting.length = 0;
    this.rewind(0);
  }
}
