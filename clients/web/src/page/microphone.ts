/**
 * The microphone over a whole recording: opened again when it was unplugged or changed for another,
 * or when the browser lets it sleep, always at the rate at which the recording began.
 *
 * What goes wrong meanwhile is told as a trouble, and `null` when it is over: `held`, the browser
 * has stopped the audio (a call, another app, or no gesture yet); `muted`, the system gives silence
 * instead; `gone`, there is no microphone to be had at the moment.
 */

import { systemClock, type Clock, type PcmRate } from "../core";
import type { CaptureBlock, CaptureEvents } from "./capture";

export type Trouble = "held" | "muted" | "gone";

/** The part of a `Capture` that is used. */
export interface OpenMicrophone {
  readonly rate_hz: PcmRate;
  pause(): Promise<void>;
  resume(): Promise<void>;
  close(): Promise<void>;
}

export interface MicrophoneOptions {
  /** Opens the device, as `Capture.open` does; fails when there is none to be had. */
  open: (events: CaptureEvents, rate_hz: PcmRate | null) => Promise<OpenMicrophone>;
  /** Tells `devicechange`. */
  devices: Pick<EventTarget, "addEventListener" | "removeEventListener"> | undefined;
  onBlock: (block: CaptureBlock) => void;
  onTrouble: (trouble: Trouble | null) => void;
  clock?: Clock;
}

const CHECK_MS = 1000;
/** Blocks come 25 times a second: after this long without one the device does not work any more. */
const STALL_MS = 3000;
/** A call takes the microphone without any word when it is free again. */
const RETRY_MS = 5000;

export class Microphone {
  readonly #options: MicrophoneOptions;
  readonly #clock: Clock;
  #device: OpenMicrophone | null = null;
  #rate_hz: PcmRate | null = null;
  #isOpen = false;
  #isPaused = false;
  #trouble: Trouble | null = null;
  /** Counts the devices that were opened: what an earlier one says does not matter any more. */
  #turn = 0;
  #heardAt_ms = 0;
  #triedAt_ms = 0;
  #stopWatch = () => {};
  readonly #onDevices = () => void (this.#trouble === "gone" && this.#reopen());

  constructor(options: MicrophoneOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  get trouble(): Trouble | null {
    return this.#trouble;
  }

  /** Start, and return the rate in Hz. Call it from a gesture of the user; fails as `open` does. */
  async open(): Promise<PcmRate> {
    const { rate_hz } = await this.#openDevice();
    this.#rate_hz = rate_hz;
    this.#isOpen = true;
    this.#options.devices?.addEventListener("devicechange", this.#onDevices);
    this.#watch();
    return rate_hz;
  }

  /** Stop listening and keep the microphone. */
  async pause(): Promise<void> {
    this.#isPaused = true;
    this.#tell(null);
    await this.#device?.pause();
  }

  async resume(): Promise<void> {
    this.#isPaused = false;
    await this.wake();
  }

  /** Try to go on at once, for instance because the page is looked at again. */
  async wake(): Promise<void> {
    if (!this.#isOpen || this.#isPaused) return;
    this.#heardAt_ms = this.#clock.now();
    if (this.#device) await this.#device.resume();
    else await this.#reopen();
  }

  async close(): Promise<void> {
    this.#isOpen = false;
    this.#stopWatch();
    this.#options.devices?.removeEventListener("devicechange", this.#onDevices);
    this.#tell(null);
    await this.#closeDevice();
  }

  async #openDevice(): Promise<OpenMicrophone> {
    const turn = ++this.#turn;
    const ifMine = (act: () => void) => void (turn === this.#turn && act());
    this.#triedAt_ms = this.#heardAt_ms = this.#clock.now();
    const device = await this.#options.open(
      {
        onBlock: (block) => ifMine(() => this.#onBlock(block)),
        onHeld: (isHeld) => ifMine(() => this.#onState("held", isHeld)),
        onMuted: (isMuted) => ifMine(() => this.#onState("muted", isMuted)),
        onEnded: () => ifMine(() => void this.#reopen()),
      },
      this.#rate_hz,
    );
    if (turn === this.#turn) this.#device = device;
    else await device.close(); // Closed, or opened once more, in the meantime.
    return device;
  }

  async #reopen(): Promise<void> {
    await this.#closeDevice();
    if (!this.#isOpen) return;
    try {
      await this.#openDevice();
      if (this.#isPaused) await this.#device?.pause();
      this.#onState("muted", false); // That was the device before.
    } catch {
      // Which reason it is does not matter here: the remedy is to try again.
      if (this.#isOpen && !this.#device) this.#tell("gone");
    }
  }

  async #closeDevice(): Promise<void> {
    this.#turn += 1;
    const device = this.#device;
    this.#device = null;
    await device?.close();
  }

  #onBlock(block: CaptureBlock): void {
    this.#heardAt_ms = this.#clock.now();
    if (this.#trouble === "held" || this.#trouble === "gone") this.#tell(null);
    if (!this.#isPaused) this.#options.onBlock(block);
  }

  #onState(trouble: Trouble, isSo: boolean): void {
    if (isSo && !this.#isPaused) this.#tell(trouble);
    else if (this.#trouble === trouble) this.#tell(null);
  }

  #tell(trouble: Trouble | null): void {
    if (trouble === this.#trouble) return;
    this.#trouble = trouble;
    this.#options.onTrouble(trouble);
  }

  /** Some phones stop the audio and say nothing, above all after the page was in the background. */
  #watch(): void {
    const set_ms = this.#clock.now();
    this.#stopWatch = this.#clock.after(CHECK_MS, () => {
      const now_ms = this.#clock.now();
      // A late timer: the page slept, and the blocks that it missed come only now.
      if (now_ms - set_ms > 2 * CHECK_MS) this.#heardAt_ms = now_ms;
      if (!this.#isPaused && this.#isOverdue(now_ms)) void this.#reopen();
      this.#watch();
    });
  }

  #isOverdue(now_ms: number): boolean {
    if (this.#trouble === "gone") return now_ms - this.#triedAt_ms >= RETRY_MS;
    const isSilent = now_ms - Math.max(this.#heardAt_ms, this.#triedAt_ms) >= STALL_MS;
    return isSilent && this.#trouble === null;
  }
}
