/* Polls while the page is visible, one request at a time. */

export interface PollingParts {
  poll(): Promise<void>;
  everyMs: number;
  /** Whether the page is visible and may poll. */
  isVisible(): boolean;
  later(run: () => void, ms: number): () => void;
}

export class Polling {
  private isPolling = false;
  /** A poll was requested while one was running, whose reply may be older than the request. */
  private again = false;
  private stopLater: (() => void) | null = null;

  constructor(private readonly parts: PollingParts) {}

  /** Polls at once. */
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
