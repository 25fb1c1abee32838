/* Keeps the newest text visible until the reader scrolls up, and again when the reader is back at
   the end. */

const NEAR_PX = 56;

export class Follow {
  private following = true;
  /** The position of the page's last own scrolling. A scroll event at another position comes from
      the reader. */
  private lastTop = 0;

  constructor(
    private readonly box: HTMLElement,
    content: HTMLElement,
    private readonly onChange: (following: boolean) => void,
  ) {
    box.addEventListener("scroll", () => this.onScroll(), { passive: true });
    // The wheel event comes before the first pixel moves, so the reader's wish wins over text of
    // the same frame.
    box.addEventListener("wheel", (event) => event.deltaY < 0 && this.canScroll() && this.set(false), { passive: true });
    new ResizeObserver(() => this.scrollToEnd()).observe(content);
    new ResizeObserver(() => this.scrollToEnd()).observe(box);
  }

  toEnd(smooth = false): void {
    this.set(true);
    if (smooth && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.box.scrollTo({ top: this.box.scrollHeight, behavior: "smooth" });
    else this.scrollToEnd();
  }

  scrollToEnd(): void {
    if (!this.following) return;
    this.box.scrollTop = this.box.scrollHeight;
    this.lastTop = this.box.scrollTop;
  }

  // Only the direction counts: the first frames of a smooth scroll up are still near the end.
  private onScroll(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    const distance = scrollTop - this.lastTop;
    this.lastTop = scrollTop;
    if (distance < 0) this.set(false);
    else if (distance > 0 && scrollHeight - scrollTop - clientHeight < NEAR_PX) this.set(true);
  }

  private canScroll(): boolean {
    return this.box.scrollHeight > this.box.clientHeight + 1;
  }

  private set(following: boolean): void {
    if (this.following === following) return;
    this.following = following;
    this.onChange(following);
  }
}
