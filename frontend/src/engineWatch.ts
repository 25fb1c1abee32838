/* Polls the state of the engine while a question waits for its answer: the state explains the wait. */

import type { Engine } from "./edge/api";

export interface EngineWatchParts {
  fetchEngine(): Promise<Engine | null>;
  later(run: () => void, ms: number): () => void;
  hasWaitingQuestion(): boolean;
  /** The state was fetched. */
  onState(): void;
}

const EVERY_MS = 2500;

export class EngineWatch {
  private isPolling = false;
  /** null: not known, or no question waits. */
  engine: Engine | null = null;

  constructor(private readonly parts: EngineWatchParts) {}

  /** Polls until no question waits. */
  start(): void {
    if (this.isPolling) return;
    this.isPolling = true;
    void this.poll();
  }

  private async poll(): Promise<void> {
    const engine = await this.parts.fetchEngine().catch(() => null);
    this.isPolling = this.parts.hasWaitingQuestion();
    this.engine = this.isPolling ? engine : null;
    if (!this.isPolling) return;
    this.parts.onState();
    this.parts.later(() => void this.poll(), EVERY_MS);
  }
}
