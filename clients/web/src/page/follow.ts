/** This near the end of the captions counts as being there. */
const END_PX = 60;

/** Keeps the newest captions in view; scrolling up ends it, the button or the end begins it again. */
export class Follow {
  readonly #scroller: HTMLElement;
  readonly #latest: HTMLElement;
  #isOn = true;

  constructor(scroller: HTMLElement, content: HTMLElement, latest: HTMLElement) {
    this.#scroller = scroller;
    this.#latest = latest;
    latest.addEventListener("click", () => {
      this.#isOn = true;
      this.update();
    });
    scroller.addEventListener("scroll", () => {
      const { scrollHeight, scrollTop, clientHeight } = scroller;
      this.#isOn = scrollHeight - scrollTop - clientHeight < END_PX;
      latest.hidden = this.#isOn;
    });
    const sizes = new ResizeObserver(() => this.update());
    sizes.observe(scroller);
    sizes.observe(content);
  }

  /** The captions have changed. */
  update(): void {
    if (this.#isOn) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#latest.hidden = this.#isOn;
  }
}
