/** Callers that wait until little enough is left. */
export class Drains {
  #waiting: { most: number; go: () => void }[] = [];

  /** Resolves once at most `most` is left; `left` is what is left now. */
  wait(most: number, left: number): Promise<void> {
    return new Promise((go) => {
      this.#waiting.push({ most, go });
      this.update(left);
    });
  }

  /** `left` is left now: let those go who wait for no less. */
  update(left: number): void {
    const waiting = this.#waiting;
    this.#waiting = waiting.filter(({ most }) => left > most);
    for (const { most, go } of waiting) if (left <= most) go();
  }
}
