/* The keyboard shortcuts, and the dialog that lists them. */

import { texts } from "../core/words";
import { h, icon } from "./dom";

export interface ShortcutsParts {
  /** Escape was pressed and nothing else handled it. */
  onEscape(): void;
  newChat(): void;
  focusQuestion(): void;
}

export class Shortcuts {
  readonly element: HTMLDialogElement;
  /** Opens the dialog. */
  readonly button: HTMLElement;

  constructor(private readonly parts: ShortcutsParts) {
    const { keyEnter: enter, keyShift: shift, keyControl: control, keyEscape: escape } = texts();
    const entries: [string, readonly string[]][] = [
      [texts().shortcutSend, [enter]],
      [texts().shortcutLine, [shift, enter]],
      [texts().shortcutStop, [escape]],
      [texts().shortcutQuestion, ["/"]],
      [texts().shortcutNewChat, [control, shift, "O"]],
      [texts().shortcutHelp, ["?"]],
    ];
    const rows = entries.map(([does, keys]) => h("div", {}, h("dt", {}, does), h("dd", {}, ...keys.map((key) => h("kbd", {}, key)))));
    const close = h("button", { type: "button", class: "icon-button", "aria-label": texts().close, onclick: () => this.element.close() }, icon("close"));
    this.element = h(
      "dialog",
      { class: "chat-dialog shortcuts", "aria-labelledby": "shortcuts-title" },
      h("header", {}, h("h2", { id: "shortcuts-title" }, texts().shortcuts), close),
      h("dl", {}, ...rows),
    );
    this.button = h("button", { type: "button", class: "theme", onclick: () => this.element.showModal() }, icon("keyboard"), h("span", {}, texts().shortcuts));
    document.addEventListener("keydown", (event) => this.onKeydown(event));
  }

  private onKeydown(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]") !== null) return;
    const writes = (event.target as Element).matches("input, textarea, select");
    if (event.key === "Escape") this.parts.onEscape();
    else if (event.key.toLowerCase() === "o" && event.shiftKey && (event.ctrlKey || event.metaKey)) this.handle(event, () => this.parts.newChat());
    else if (event.key === "/" && !writes) this.handle(event, () => this.parts.focusQuestion());
    else if (event.key === "?" && !writes) this.handle(event, () => this.element.showModal());
  }

  private handle(event: KeyboardEvent, run: () => void): void {
    event.preventDefault();
    run();
  }
}
