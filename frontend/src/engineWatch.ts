/* Asks for the state of the engine while a question waits for its answer: it explains the wait. */

import type { Engine } from "./edge/api";

export interface EngineWatchParts {
  ask(): Promise<Engine | null>;
  later(run: () => void, ms: number): () => void;
  /** Whether a question waits for its answer. */
  isWaitedFor(): boolean;
  /** The state was asked for. */
  told(): void;
}

const EVERY_MS = 2500;

export class EngineWatch {
  private isAsked = false;
  /** null until known, and while no question waits. */
  engine: Engine | null = null;

  constructor(private readonly parts: EngineWatchParts) {}

  /** Asks until no question waits. */
  begin(): void {
    if (this.isAsked) return;
    this.isAsked = true;
    void this.ask();
  }

  private async ask(): Promise<void> {
    const engine = await this.parts.ask().catch(() => null);
    this.isAsked = this.parts.isWaitedFor();
    this.engine = this.isAsked ? engine : null;
    if (!this.isAsked) return;
    this.parts.told();
    this.parts.later(() => void this.ask(), EVERY_MS);
  }
}
