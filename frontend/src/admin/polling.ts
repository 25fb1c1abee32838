/* Asks again and again while the page is seen, one question at a time. */

export interface PollingParts {
  poll(): Promise<void>;
  everyMs: number;
  /** Whether anybody looks. */
  isVisible(): boolean;
  later(run: () => void, ms: number): () => void;
}

export class Polling {
  private isPolling = false;
  /** Somebody wanted an answer while one was on its way, which may be of before. */
  private again = false;
  private stopLater: (() => void) | null = null;

  constructor(private readonly parts: PollingParts) {}

  /** Ask at once. */
  now(): void {
    this.stopLater?.();
    this.stopLater = null;
    if (this.isPolling) {
      this.again = true;
      return;
    }
    this.isPolling = true;
    void this.parts.poll().finally(() => {
      this.isPolling = false;
      const again = this.again;
      this.again = false;
      if (again) this.now();
      else this.stopLater = this.parts.later(() => this.next(), this.parts.everyMs);
    });
  }

  private next(): void {
    if (this.parts.isVisible()) this.now();
    else this.stopLater = this.parts.later(() => this.next(), this.parts.everyMs);
  }
}
