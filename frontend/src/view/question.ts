/* The text of a question. A long one is cut at first, so that the answer is visible. */

import { isLong } from "../core/question";
import { texts } from "../core/words";
import { h, setText } from "./dom";

export class Question {
  readonly element: HTMLElement;
  private readonly text = h("div", { class: "question-text", dir: "auto" });
  private readonly all: HTMLButtonElement;
  private open = false;

  constructor() {
    const toggle = (): void => {
      this.open = !this.open;
      this.draw();
      // Keeps the question visible when a long text is cut again.
      if (!this.open) this.element.scrollIntoView({ block: "nearest" });
    };
    this.all = h("button", { type: "button", class: "show-all", onclick: toggle });
    this.element = h("div", { class: "question" }, this.text);
  }

  show(question: string): void {
    setText(this.text, question);
    this.draw();
  }

  private draw(): void {
    const long = isLong(this.text.textContent ?? "");
    this.element.dataset["cut"] = String(long && !this.open);
    if (!long) this.all.remove();
    else if (!this.all.isConnected) this.element.append(this.all);
    this.all.setAttribute("aria-expanded", String(this.open));
    setText(this.all, this.open ? texts().showLess : texts().showAll);
  }
}
