/** A native module that does what it is told, and what a phone does to it. */

import type { MicrophoneListener, NativeMicrophone } from "../src/native";

export class FakeMicrophone implements NativeMicrophone {
  isAllowed = true;
  /** Another app has it. */
  isBusy = false;
  isRunning = false;
  starts: number[] = [];
  #listener: MicrophoneListener | null = null;

  async requestPermission(): Promise<boolean> {
    return this.isAllowed;
  }

  async start(rate_hz: number, listener: MicrophoneListener): Promise<void> {
    if (this.isRunning) throw new Error("started twice");
    if (this.isBusy) throw new Error("busy");
    this.isRunning = true;
    this.starts.push(rate_hz);
    this.#listener = listener;
  }

  async stop(): Promise<void> {
    this.isRunning = false;
    this.#listener = null;
  }

  /** Someone speaks. */
  speak(...samples: number[]): void {
    this.#listener?.onSamples(Float32Array.from(samples));
  }

  interrupt(isInterrupted: boolean): void {
    this.#listener?.onInterrupted(isInterrupted);
  }

  changeRoute(): void {
    this.#listener?.onRouteChanged();
  }
}
