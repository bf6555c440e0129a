/** The menu that saves the captions as a file. */

import { FORMATS, MEDIA_TYPES, render, type Format, type Segment } from "../core";

export class Downloads {
  readonly #menu: HTMLDetailsElement;
  readonly #segments: () => readonly Segment[];

  /** `segments`: what is saved. */
  constructor(menu: HTMLDetailsElement, segments: () => readonly Segment[]) {
    this.#menu = menu;
    this.#segments = segments;
    for (const format of FORMATS) {
      menu.querySelector(`[data-format=${format}]`)?.addEventListener("click", () => this.#save(format));
    }
    document.addEventListener("click", ({ target }) => {
      if (!menu.contains(target as Node)) menu.open = false;
    });
    document.addEventListener("keydown", ({ key }) => {
      if (key === "Escape") menu.open = false;
    });
  }

  enable(isEnabled: boolean): void {
    this.#menu.classList.toggle("disabled", !isEnabled);
    if (!isEnabled) this.#menu.open = false;
  }

  #save(format: Format): void {
    const content = render(this.#segments(), format);
    const address = URL.createObjectURL(new Blob([content], { type: MEDIA_TYPES[format] }));
    const link = document.createElement("a");
    link.href = address;
    link.download = `captions-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}.${format}`;
    link.click();
    URL.revokeObjectURL(address);
    this.#menu.open = false;
  }
}
