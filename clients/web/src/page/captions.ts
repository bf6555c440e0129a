/** Draws a transcript: turns of speakers, then what is being heard. */

import type { LiveSegment, Segment } from "../core";

/** A pause after which the same speaker gets a new turn, in seconds. */
const TURN_PAUSE_S = 5;
/** Colours in the style sheet; speakers beyond them share. */
const NUM_COLOURS = 8;

/** What is drawn; `segments` is a new list unless it only grew. */
export interface Transcript {
  readonly segments: readonly Segment[];
  readonly live: readonly LiveSegment[];
}

export interface Naming {
  nameOf: (speaker: string) => string;
  /** Asked to change a name; without it names are mere text. */
  onName?: ((speaker: string) => void) | undefined;
}

type Piece = Pick<Segment, "speaker" | "start_s" | "end_s" | "text">;

export class CaptionsView {
  readonly #finals: HTMLElement;
  readonly #live: HTMLElement;
  readonly #naming: Naming;
  readonly #colours = new Map<string, number>();
  #shown: readonly Segment[] = [];
  #numShown = 0;
  #turn: HTMLElement | null = null;

  constructor(finals: HTMLElement, live: HTMLElement, naming: Naming = { nameOf }) {
    this.#finals = finals;
    this.#live = live;
    this.#naming = naming;
  }

  update({ segments, live }: Transcript): void {
    // A renamed speaker makes a new list: draw all of it again.
    if (segments !== this.#shown) this.#restart(segments);
    for (const segment of segments.slice(this.#numShown)) {
      this.#turn = this.#draw(segment, segments[this.#numShown - 1], this.#turn, this.#finals);
      this.#numShown += 1;
    }
    this.#drawLive(live, segments.at(-1));
  }

  #restart(segments: readonly Segment[]): void {
    this.#finals.replaceChildren();
    this.#shown = segments;
    this.#numShown = 0;
    this.#turn = null;
  }

  #drawLive(live: readonly LiveSegment[], lastFinal: Segment | undefined): void {
    this.#live.replaceChildren();
    let before: Piece | undefined = lastFinal;
    let turn: HTMLElement | null = null;
    for (const segment of live) {
      const continues = turn === null && before !== undefined && joins(before, segment);
      turn = this.#draw(segment, before, turn, this.#live, segment.committed ? "committed" : "partial");
      // It will join the last turn when it is final: no heading, or the text would jump.
      if (continues) turn.classList.add("continues");
      before = segment;
    }
  }

  /** Add a piece to the turn before it, or to a new one; returns the turn. */
  #draw(piece: Piece, before: Piece | undefined, turn: HTMLElement | null, into: HTMLElement, look = "final") {
    const words = element("span", look, `${piece.text.trim()} `);
    if (turn && before && joins(before, piece)) {
      turn.querySelector("p")?.append(words);
      return turn;
    }
    const next = element("section", "turn");
    if (piece.speaker) next.style.setProperty("--speaker", `var(--speaker-${this.#colour(piece.speaker)})`);
    const heading = element("header");
    heading.append(this.#name(piece.speaker, into), " ", element("time", "", clock(piece.start_s)));
    const paragraph = element("p");
    paragraph.append(words);
    next.append(heading, paragraph);
    into.append(next);
    return next;
  }

  #name(speaker: string, into: HTMLElement): HTMLElement {
    const { nameOf, onName } = this.#naming;
    // What is being heard is drawn anew too often to be pressed.
    if (!onName || into === this.#live) return element("span", "name", nameOf(speaker));
    const button = element("button", "name", nameOf(speaker));
    button.title = "Say who this is";
    button.addEventListener("click", () => onName(speaker));
    return button;
  }

  #colour(speaker: string): number {
    const known = this.#colours.get(speaker);
    if (known !== undefined) return known;
    const colour = (this.#colours.size % NUM_COLOURS) + 1;
    this.#colours.set(speaker, colour);
    return colour;
  }
}

/** Minutes and seconds, with hours where there are any. */
export function clock(seconds: number): string {
  const whole = Math.floor(seconds);
  const two = (value: number) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function joins(before: Piece, piece: Piece): boolean {
  return before.speaker === piece.speaker && piece.start_s - before.end_s < TURN_PAUSE_S;
}

/** `S01` as people say it. */
export function nameOf(speaker: string): string {
  const number = /^S0*(\d+)$/.exec(speaker)?.[1];
  return number ? `Speaker ${number}` : speaker || "Speech";
}

function element(tag: string, className = "", text = ""): HTMLElement {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
