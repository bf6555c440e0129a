/** Asks for the name of a speaker and tells it to the room. */

import { authorization } from "./key";

export interface NamePromptOptions {
  dialog: HTMLDialogElement;
  /** Path of the room, as in `v1/rooms/3f9a`. */
  path: string;
  key: () => string;
  /** The server did not take the name; in its own words. */
  onFailed: (message: string) => void;
}

export class NamePrompt {
  readonly #options: NamePromptOptions;
  readonly #input: HTMLInputElement;
  #speaker = "";

  constructor(options: NamePromptOptions) {
    const { dialog } = options;
    this.#options = options;
    this.#input = dialog.querySelector("input") as HTMLInputElement;
    dialog.querySelector("form")?.addEventListener("submit", () => void this.#send());
    dialog.querySelector("button[type=button]")?.addEventListener("click", () => dialog.close());
  }

  /** Ask for another name of a speaker, which is called `present` now. */
  open(speaker: string, present: string): void {
    this.#speaker = speaker;
    this.#input.placeholder = speaker;
    this.#input.value = present === speaker ? "" : present;
    this.#options.dialog.showModal();
    this.#input.select();
  }

  /** The room tells the new name to everybody, this page included. An empty one is taken away. */
  async #send(): Promise<void> {
    const { path, key, onFailed } = this.#options;
    const body = JSON.stringify({ speaker: this.#speaker, name: this.#input.value.trim() || null });
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
