/* A module that is loaded when it is first needed. */

/** After this time nothing waits for the module any more. */
const LATE_MS = 1000;
const RETRY_MS = 10_000;

export class Lazy<T> {
  private module: T | null = null;
  private isRequested = false;
  private isLate = false;
  private readonly waiting = new Set<() => void>();

  constructor(private readonly importModule: () => Promise<T>) {}

  /** Null until the module is loaded. */
  get value(): T | null {
    return this.module;
  }

  /** The module will be there in a moment: it is better to wait for it than to draw without it. */
  get isLoading(): boolean {
    return this.isRequested && !this.isLate && this.module === null;
  }

  /** Calls `onChange` when the module is loaded, and once when it is late. It is not called if the
      module is already loaded. */
  load(onChange?: () => void): void {
    if (this.module !== null) return;
    if (onChange !== undefined) this.waiting.add(onChange);
    if (this.isRequested) return;
    this.isRequested = true;
    this.isLate = false;
    const timer = setTimeout(() => this.onLate(), LATE_MS);
    void this.importModule().then(
      (module) => {
        clearTimeout(timer);
        this.module = module;
        this.notify();
        this.waiting.clear();
      },
      () => {
        clearTimeout(timer);
        this.onLate();
        setTimeout(() => (this.isRequested = false), RETRY_MS);
      },
    );
  }

  /** Resolves when the module is loaded, and after `ms` at the latest. */
  wait(ms: number): Promise<void> {
    return new Promise((done) => {
      setTimeout(done, ms);
      if (this.module !== null) done();
      else this.load(done);
    });
  }

  private onLate(): void {
    this.isLate = true;
    this.notify();
  }

  // A task for each, because many wait in a long chat.
  private notify(): void {
    for (const each of this.waiting) setTimeout(each);
  }
}
