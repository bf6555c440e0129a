/** Keeps the screen on while recording: phones stop the microphone when it goes dark. */
export class WakeLock {
  #isWanted = false;
  #lock: WakeLockSentinel | null = null;

  constructor() {
    // The browser releases the lock whenever the page is hidden.
    document.addEventListener("visibilitychange", () => void this.#update());
  }

  want(isWanted: boolean): void {
    this.#isWanted = isWanted;
    void this.#update();
  }

  async #update(): Promise<void> {
    if (!this.#isWanted) {
      const lock = this.#lock;
      this.#lock = null;
      await lock?.release();
      return;
    }
    if (document.visibilityState !== "visible" || !("wakeLock" in navigator)) return;
    if (this.#lock && !this.#lock.released) return;
    try {
      this.#lock = await navigator.wakeLock.request("screen");
    } catch {
      this.#lock = null; // Refused to save the battery: recording goes on without it.
    }
  }
}
