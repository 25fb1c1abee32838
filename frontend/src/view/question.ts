/* The question as it was asked. A long one is shown cut, so that the answer is in sight. */

import { isLong } from "../core/question";
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
      // What is below stays in sight when a long text goes.
      if (!this.open) this.element.scrollIntoView({ block: "nearest" });
    };
    this.all = h("button", { type: "button", class: "show-all", hidden: true, onclick: toggle });
    this.element = h("div", { class: "question" }, this.text, this.all);
  }

  show(question: string): void {
    setText(this.text, question);
    this.draw();
  }

  private draw(): void {
    const long = isLong(this.text.textContent ?? "");
    this.element.dataset["cut"] = String(long && !this.open);
    this.all.hidden = !long;
    this.all.setAttribute("aria-expanded", String(this.open));
    setText(this.all, long ? (this.open ? "Show less" : "Show all") : "");
  }
}
