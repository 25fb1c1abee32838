import { texts } from "../core/words";
import { h, icon } from "./dom";

export interface ComposerParts {
  send(question: string): void;
  stop(): void;
  /** The text of the field changed. */
  onInput(words: string): void;
  /** Whether the question can be sent now. If not, the function reports why. */
  canSend(): boolean;
  /** Files were pasted. */
  onPasteFiles(files: readonly File[]): void;
}

/** Enter sends, Shift+Enter starts a new line. While an answer runs, the button stops it, and a
    sent question waits for its end. */
export class Composer {
  readonly element: HTMLFormElement;
  readonly field: HTMLTextAreaElement;
  private readonly button: HTMLButtonElement;
  private busy = false;

  /** `above`: placed above the field; `tools`: next to the button. */
  constructor(
    private readonly parts: ComposerParts,
    above: HTMLElement,
    tools: readonly HTMLElement[],
  ) {
    this.field = h("textarea", {
      id: "question",
      rows: "1",
      placeholder: texts().askAnything,
      "aria-label": texts().yourQuestion,
      autocomplete: "off",
      enterkeyhint: "send",
      oninput: () => this.onInput(),
      onkeydown: (event) => this.onKeydown(event as KeyboardEvent),
      onpaste: (event) => this.onPaste(event as ClipboardEvent),
    });
    this.button = h("button", { type: "submit", class: "send" });
    this.element = h("form", { class: "composer", onsubmit: (event) => this.onSubmit(event) }, above, this.field, h("div", { class: "composer-bar" }, ...tools, this.button));
    this.element.addEventListener("pointerdown", (event) => {
      if (event.target !== this.element) return;
      event.preventDefault();
      this.field.focus();
    });
    this.draw();
  }

  setBusy(busy: boolean): void {
    if (busy === this.busy) return;
    this.busy = busy;
    this.draw();
  }

  write(question: string, focus = true): void {
    this.field.value = question;
    this.onInput();
    if (focus) this.field.focus();
  }

  private onInput(): void {
    this.parts.onInput(this.field.value);
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.draw();
  }

  private onKeydown(event: KeyboardEvent): void {
    // Enter at the end of an input method's composition confirms a word; it does not send.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.sendNow();
  }

  // Text with images is pasted as text.
  private onPaste(event: ClipboardEvent): void {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length === 0 || event.clipboardData?.types.includes("text/plain") === true) return;
    event.preventDefault();
    this.parts.onPasteFiles(files);
  }

  private onSubmit(event: Event): void {
    event.preventDefault();
    if (this.stops) this.parts.stop();
    else this.sendNow();
  }

  private sendNow(): void {
    const question = this.field.value.trim();
    if (question === "" || !this.parts.canSend()) return;
    this.write("");
    this.parts.send(question);
  }

  /** Whether the button stops the answer: an answer runs, and the field is empty. */
  private get stops(): boolean {
    return this.busy && this.field.value.trim() === "";
  }

  private draw(): void {
    const stops = this.stops;
    const label = stops ? texts().stop : this.busy ? texts().sendLater : texts().send;
    if (this.button.getAttribute("aria-label") !== label) {
      this.button.setAttribute("aria-label", label);
      this.button.title = texts().withKey(label, stops ? "Esc" : "Enter");
      this.button.className = stops ? "send stop" : "send";
      this.button.replaceChildren(icon(stops ? "stop" : "send"));
    }
    this.button.disabled = !this.busy && this.field.value.trim() === "";
  }
}
