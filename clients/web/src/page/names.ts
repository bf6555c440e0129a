/** Asks who a speaker is, by a name or as one of the others, and tells it to the room. */

import { byId } from "./dom";
import { authorization } from "./key";

export interface NamePromptOptions {
  dialog: HTMLDialogElement;
  /** Path of the room, as in `v1/rooms/3f9a`. */
  path: string;
  key: () => string;
  /** The server did not take it; in its own words. */
  onFailed: (message: string) => void;
}

/** Somebody who may be the same person. */
export interface Other {
  speaker: string;
  name: string;
}

export class NamePrompt {
  readonly #options: NamePromptOptions;
  readonly #name = byId<HTMLInputElement>("name");
  readonly #same = byId("same");
  readonly #sameAs = byId<HTMLSelectElement>("same-as");
  #speaker = "";

  constructor(options: NamePromptOptions) {
    const { dialog } = options;
    this.#options = options;
    this.#sameAs.addEventListener("change", () => this.#chosen());
    dialog.querySelector("form")?.addEventListener("submit", () => void this.#send());
    dialog.querySelector("button[type=button]")?.addEventListener("click", () => dialog.close());
  }

  /** Ask who a speaker is, who is called `present` now. */
  open(speaker: string, present: string, others: readonly Other[]): void {
    this.#speaker = speaker;
    this.#name.placeholder = speaker;
    this.#name.value = present === speaker ? "" : present;
    this.#same.hidden = others.length === 0;
    const choices = others.map((other) => new Option(other.name, other.speaker));
    this.#sameAs.replaceChildren(new Option("nobody else here", ""), ...choices);
    this.#chosen();
    this.#options.dialog.showModal();
    this.#name.select();
  }

  /** Who is one of the others needs no name. */
  #chosen(): void {
    this.#name.disabled = this.#sameAs.value !== "";
  }

  /** The room tells it to everybody, this page included. An empty name is taken away. */
  async #send(): Promise<void> {
    const { path, key, onFailed } = this.#options;
    const same_as = this.#sameAs.value;
    const answer = same_as ? { same_as } : { name: this.#name.value.trim() || null };
    const body = JSON.stringify({ speaker: this.#speaker, ...answer });
    const headers = { "Content-Type": "application/json", ...authorization(key()) };
    try {
      const response = await fetch(new URL(`${path}/speakers`, document.baseURI), { method: "POST", headers, body });
      if (!response.ok) onFailed(await reason(response));
    } catch {
      onFailed("The server cannot be reached.");
    }
  }
}

async function reason(response: Response): Promise<string> {
  try {
    const { error } = (await response.json()) as { error: { message: string } };
    return error.message;
  } catch {
    return `The server answers ${response.status}.`; // It was something before the server.
  }
}
