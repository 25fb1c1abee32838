/* A module that is loaded when it is first needed. */

/** After this time it is no longer waited for. */
const LATE_MS = 1000;
const AGAIN_MS = 10_000;

export class Lazy<T> {
  private found: T | null = null;
  private asked = false;
  private late = false;
  private readonly waiting = new Set<() => void>();

  constructor(private readonly load: () => Promise<T>) {}

  /** Null until it has come. */
  get value(): T | null {
    return this.found;
  }

  /** It will be there at once, so it is better to wait for it than to draw without it. */
  get isComing(): boolean {
    return this.asked && !this.late && this.found === null;
  }

  /** Runs `then` when it has come, and once when it is late; not if it is there already. */
  bring(then?: () => void): void {
    if (this.found !== null) return;
    if (then !== undefined) this.waiting.add(then);
    if (this.asked) return;
    this.asked = true;
    this.late = false;
    const timer = setTimeout(() => this.isLate(), LATE_MS);
    void this.load().then(
      (found) => {
        clearTimeout(timer);
        this.found = found;
        this.tell();
        this.waiting.clear();
      },
      () => {
        clearTimeout(timer);
        this.isLate();
        setTimeout(() => (this.asked = false), AGAIN_MS);
      },
    );
  }

  /** Resolves when it has come, at the latest after so many ms. */
  soon(ms: number): Promise<void> {
    return new Promise((done) => {
      setTimeout(done, ms);
      if (this.found !== null) done();
      else this.bring(done);
    });
  }

  private isLate(): void {
    this.late = true;
    this.tell();
  }

  // Each in a task of its own, because in a long chat many wait.
  private tell(): void {
    for (const each of this.waiting) setTimeout(each);
  }
}
