import { h, icon } from "./dom";

export interface ComposerParts {
  send(question: string, model: string | null): void;
  stop(): void;
  /** What is written, at each change. */
  written(words: string): void;
}

/** Enter sends, Shift+Enter starts a line; while an answer runs, the button stops it, and what is sent waits for its end. */
export class Composer {
  readonly element: HTMLFormElement;
  readonly field: HTMLTextAreaElement;
  private readonly button: HTMLButtonElement;
  private readonly models = h("select", { class: "models", "aria-label": "Model" });
  private busy = false;

  constructor(private readonly parts: ComposerParts) {
    this.field = h("textarea", {
      id: "question",
      rows: "1",
      placeholder: "Ask anything",
      "aria-label": "Your question",
      autocomplete: "off",
      enterkeyhint: "send",
      oninput: () => this.changed(),
      onkeydown: (event) => this.pressed(event as KeyboardEvent),
    });
    this.button = h("button", { type: "submit", class: "send" });
    this.models.hidden = true;
    this.element = h("form", { class: "composer", onsubmit: (event) => this.submitted(event) }, this.field, h("div", { class: "composer-bar" }, this.models, this.button));
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

  setModels(models: readonly string[], chosen: string | null): void {
    this.models.replaceChildren(...models.map((name) => h("option", { value: name, ...(name === chosen ? { selected: true } : {}) }, name)));
    this.models.hidden = models.length === 0;
    this.models.disabled = models.length < 2;
  }

  get model(): string | null {
    return this.models.value === "" ? null : this.models.value;
  }

  write(question: string, focus = true): void {
    this.field.value = question;
    this.changed();
    if (focus) this.field.focus();
  }

  private changed(): void {
    this.parts.written(this.field.value);
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.draw();
  }

  private pressed(event: KeyboardEvent): void {
    // Enter that ends an input method's composition chooses a word, it does not send.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.sendNow();
  }

  private submitted(event: Event): void {
    event.preventDefault();
    if (this.stops) this.parts.stop();
    else this.sendNow();
  }

  private sendNow(): void {
    const question = this.field.value.trim();
    if (question === "") return;
    this.write("");
    this.parts.send(question, this.model);
  }

  /** Whether the button stops the answer: nothing is written that it could send. */
  private get stops(): boolean {
    return this.busy && this.field.value.trim() === "";
  }

  private draw(): void {
    const stops = this.stops;
    const label = stops ? "Stop" : this.busy ? "Send when the answer is complete" : "Send";
    if (this.button.getAttribute("aria-label") !== label) {
      this.button.setAttribute("aria-label", label);
      this.button.title = `${label} (${stops ? "Esc" : "Enter"})`;
      this.button.className = stops ? "send stop" : "send";
      this.button.replaceChildren(icon(stops ? "stop" : "send"));
    }
    this.button.disabled = !this.busy && this.field.value.trim() === "";
  }
}
