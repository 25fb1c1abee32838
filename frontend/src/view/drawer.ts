/* The list of chats on a phone: it covers the page and behaves like a dialog while it is open. */

/** The same width as in style.css. */
const NARROW = "(max-width: 760px)";

export interface DrawerParts {
  shell: HTMLElement;
  /** The usable elements while it is open: the list, and messages with a button. */
  inside: readonly HTMLElement[];
  /** The elements that it covers. */
  covered: readonly HTMLElement[];
  /** The button that opens it. */
  menu: HTMLButtonElement;
}

export class Drawer {
  constructor(private readonly parts: DrawerParts) {
    parts.menu.setAttribute("aria-expanded", "false");
    parts.shell.addEventListener("keydown", (event) => this.onKeydown(event));
    // On a wide page the list is next to the chat.
    matchMedia(NARROW).addEventListener("change", () => this.close());
  }

  get isOpen(): boolean {
    return this.parts.shell.classList.contains("drawer");
  }

  open(): void {
    this.set(true);
    this.focusable()[0]?.focus();
  }

  /** Closes the list and moves the focus back to its button. */
  close(): void {
    if (!this.isOpen) return;
    this.set(false);
    this.parts.menu.focus();
  }

  private set(open: boolean): void {
    this.parts.shell.classList.toggle("drawer", open);
    this.parts.menu.setAttribute("aria-expanded", String(open));
    for (const each of this.parts.covered) each.inert = open;
  }

  // Tab on the last element moves the focus to the first one, and Shift+Tab back.
  private onKeydown(event: KeyboardEvent): void {
    if (!this.isOpen || event.key !== "Tab") return;
    const elements = this.focusable();
    const [first, last] = [elements[0], elements.at(-1)];
    if (document.activeElement !== (event.shiftKey ? first : last)) return;
    event.preventDefault();
    (event.shiftKey ? last : first)?.focus();
  }

  private focusable(): HTMLElement[] {
    const elements = this.parts.inside.flatMap((each) => [...each.querySelectorAll<HTMLElement>("a[href], button, input, select, textarea")]);
    return elements.filter((each) => !each.matches(":disabled") && each.checkVisibility({ visibilityProperty: true }));
  }
}
