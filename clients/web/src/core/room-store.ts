/** A room's transcript from its events: what is settled, what is being heard, and who is who. */

import type { RoomEntry, RoomEvent, RoomPartial, RoomRole, RoomSegment } from "./room-protocol.js";
import type { LiveSegment, Segment } from "./transcript.js";

export class RoomStore {
  #title = "";
  #role: RoomRole = "view";
  /** By start, then by id. */
  #entries: RoomEntry[] = [];
  #partials = new Map<string, RoomPartial>();
  #names = new Map<string, string>();
  #segments: Segment[] = [];

  get title(): string {
    return this.#title;
  }

  get role(): RoomRole {
    return this.#role;
  }

  /** Settled segments in the order of their utterances; a new list unless it only grew. */
  get segments(): readonly Segment[] {
    return this.#segments;
  }

  /** What is being heard now, in the order of the utterances. */
  get live(): readonly LiveSegment[] {
    const partials = [...this.#partials.values()].sort(inOrder);
    return partials.flatMap(({ segments }) =>
      segments.map((segment) => ({ ...asSegment(segment), committed: segment.committed })),
    );
  }

  /** Labels of those who have said something, in order of appearance. */
  get speakers(): readonly string[] {
    return [...new Set(this.#segments.map(({ speaker }) => speaker))];
  }

  /** The name somebody gave a speaker, or the label itself. */
  nameOf(speaker: string): string {
    return this.#names.get(speaker) ?? speaker;
  }

  /** Segments with the names of their speakers, as `render` takes them. */
  named(): Segment[] {
    return this.#segments.map((segment) => ({ ...segment, speaker: this.nameOf(segment.speaker) }));
  }

  /** Take in an event; says whether anything changed. */
  apply(event: RoomEvent): boolean {
    switch (event.type) {
      case "room.snapshot":
        this.#entries = [...event.entries].sort(inOrder);
        this.#names = new Map(Object.entries(event.names));
        this.#rebuild();
        return this.#begin(event);
      case "room.resumed":
        return this.#begin(event);
      case "room.partial":
        if (event.segments.length > 0) this.#partials.set(event.entry, event);
        else this.#partials.delete(event.entry);
        return true;
      case "room.entry":
        this.#partials.delete(event.entry);
        this.#settle(event);
        return true;
      case "room.relabelled":
        this.#relabel(event.speaker, event.replaced_by);
        return true;
      case "room.renamed":
        if (event.name === null) this.#names.delete(event.speaker);
        else this.#names.set(event.speaker, event.name);
        this.#rebuild(); // The same words under another name.
        return true;
      default:
        return false;
    }
  }

  #begin({ title, role, partials }: { title: string; role: RoomRole; partials: RoomPartial[] }): true {
    this.#title = title;
    this.#role = role;
    this.#partials = new Map(partials.map((partial) => [partial.entry, partial]));
    return true;
  }

  #settle(entry: RoomEntry): void {
    let at = this.#entries.length;
    for (; at > 0; at--) {
      const before = this.#entries[at - 1];
      if (before && inOrder(before, entry) <= 0) break;
    }
    const isLast = at === this.#entries.length;
    this.#entries.splice(at, 0, entry);
    if (isLast) this.#segments.push(...shown(entry));
    else this.#rebuild();
  }

  #relabel(speaker: string, replaced_by: string): void {
    this.#names.delete(speaker); // Where it stays, the server says so next.
    const renamed = <T extends RoomSegment>(segment: T): T =>
      segment.speaker === speaker ? { ...segment, speaker: replaced_by } : segment;
    this.#entries = this.#entries.map((entry) => ({ ...entry, segments: entry.segments.map(renamed) }));
    for (const [id, partial] of this.#partials) {
      this.#partials.set(id, { ...partial, segments: partial.segments.map(renamed) });
    }
    this.#rebuild();
  }

  #rebuild(): void {
    this.#segments = this.#entries.flatMap(shown);
  }
}

function inOrder(one: { start: number; entry: string }, other: { start: number; entry: string }): number {
  return one.start - other.start || (one.entry < other.entry ? -1 : Number(one.entry > other.entry));
}

/** Text that ends early says so. */
function shown({ segments, complete }: RoomEntry): Segment[] {
  return segments.map((segment, index) => {
    const isCut = !complete && index === segments.length - 1;
    return isCut ? { ...asSegment(segment), text: `${segment.text} …` } : asSegment(segment);
  });
}

function asSegment({ speaker, start, end, text }: RoomSegment): Segment {
  return { speaker, start_s: start, end_s: end, text };
}
