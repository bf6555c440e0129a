/** Messages above the captions, one for each matter, each with its remedy. */

import type { CaptureProblem } from "./capture";
import type { Trouble } from "./microphone";

export type Tone = "error" | "warning" | "info";

export interface Notice {
  tone: Tone;
  title: string;
  text: string;
  action?: { label: string; run: () => void };
}

export class Notices {
  readonly #root: HTMLElement;
  readonly #shown = new Map<string, HTMLElement>();

  constructor(root: HTMLElement) {
    this.#root = root;
  }

  show(matter: string, notice: Notice): void {
    const card = document.createElement("div");
    card.className = "notice";
    card.dataset["tone"] = notice.tone;
    const body = document.createElement("p");
    const title = document.createElement("strong");
    title.textContent = notice.title;
    body.append(title, ` ${notice.text}`);
    card.append(body);
    if (notice.action) card.append(button(notice.action.label, notice.action.run));
    const dismiss = button("×", () => this.clear(matter));
    dismiss.setAttribute("aria-label", "Dismiss");
    dismiss.className = "quiet";
    card.append(dismiss);
    const before = this.#shown.get(matter);
    if (before) before.replaceWith(card);
    else this.#root.append(card);
    this.#shown.set(matter, card);
  }

  clear(matter: string): void {
    this.#shown.get(matter)?.remove();
    this.#shown.delete(matter);
  }

  clearAll(): void {
    for (const matter of [...this.#shown.keys()]) this.clear(matter);
  }
}

function button(label: string, run: () => void): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.addEventListener("click", run);
  return made;
}

/** What to do about a microphone that does not open. */
export const CAPTURE_HINTS: Record<CaptureProblem, Notice> = {
  insecure: {
    tone: "error",
    title: "The microphone needs a secure page.",
    text:
      "Browsers give it only to https:// and to localhost. Start the server with --tls-cert and --tls-key, " +
      "or open the page on the machine it runs on.",
  },
  unsupported: {
    tone: "error",
    title: "This browser cannot record.",
    text: "It has no AudioWorklet. A current Chrome, Edge, Firefox or Safari has it.",
  },
  denied: {
    tone: "error",
    title: "The microphone is blocked.",
    text: "Allow it in the site settings beside the address, and in the privacy settings of the system, then press Start.",
  },
  missing: {
    tone: "error",
    title: "No microphone was found.",
    text: "Connect one, then press Start.",
  },
  busy: {
    tone: "error",
    title: "The microphone does not start.",
    text: "Another program may be using it. Close that program, then press Start.",
  },
};

/** What is the matter with a microphone that worked before; each is tried to be mended, too. */
export const TROUBLE_HINTS: Record<Trouble, Notice> = {
  held: {
    tone: "warning",
    title: "The browser has stopped the audio.",
    text: "A call or another app may have taken the microphone. What is said now is not heard.",
  },
  muted: {
    tone: "warning",
    title: "The system has muted the microphone.",
    text: "It goes on when the call is over, or when the switch of the microphone is back.",
  },
  gone: {
    tone: "warning",
    title: "The microphone is gone.",
    text: "It goes on when one is connected, free or allowed again.",
  },
};
