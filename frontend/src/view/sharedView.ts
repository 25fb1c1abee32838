/* A conversation that somebody gave a link to, to be read. */

import { nameOf, type SharedMessage } from "../core/sharedChat";
import { texts } from "../core/words";
import type { Found } from "../edge/sharedLink";
import { block } from "./blocks";
import { copiesCode } from "./copyCode";
import { h } from "./dom";
import { Question } from "./question";

export class SharedView {
  private readonly heading = h("h1", { tabindex: "-1" }, texts().sharedChat);
  private readonly body = h("div", { class: "column" });

  /** `again`: tries once more. */
  constructor(
    root: HTMLElement,
    private readonly again: () => void,
  ) {
    const brand = h("span", { class: "shared-brand" }, h("img", { src: "/icon.svg", alt: "", width: "24", height: "24" }), h("span", {}, "Tailrace"));
    const top = h("header", { class: "shared-top" }, brand, h("a", { class: "primary", href: "/" }, texts().openTailrace));
    root.replaceChildren(h("div", { class: "shared" }, top, h("main", {}, this.body), h("footer", { class: "hint" }, texts().canBeWrong)));
    copiesCode(this.body);
    this.say(texts().sharedComes);
  }

  show(found: Found): void {
    if (found.kind === "chat") this.draw(found);
    else if (found.kind === "gone") this.end();
    else this.say(found.words, h("button", { type: "button", class: "continue", onclick: () => this.tryAgain() }, texts().tryAgain));
  }

  private draw({ title, sharedAt, endsAt, messages }: Found & { kind: "chat" }): void {
    const name = nameOf(title, messages);
    this.name(name === "" ? texts().sharedChat : name);
    const dates = h("p", { class: "shared-dates" }, texts().sharedOn(date(sharedAt)), " ", texts().sharedUntil(date(endsAt)));
    const drawn = messages.length === 0 ? [h("p", { class: "note" }, texts().sharedEmpty)] : messages.map(messageOf);
    this.body.replaceChildren(this.heading, dates, ...drawn);
  }

  private tryAgain(): void {
    this.say(texts().sharedComes);
    this.heading.focus(); // the button went
    this.again();
  }

  private end(): void {
    this.name(texts().sharedGone);
    this.body.replaceChildren(this.heading, h("p", { class: "note" }, texts().sharedGoneBecause));
  }

  private say(words: string, ...more: HTMLElement[]): void {
    this.name(texts().sharedChat);
    this.body.replaceChildren(this.heading, h("p", { class: "note", role: "status" }, words), ...more);
  }

  private name(words: string): void {
    this.heading.textContent = words;
    document.title = texts().pageTitle(words);
  }
}

function messageOf(message: SharedMessage): HTMLElement {
  const asked = message.role === "user";
  const left = [leftOut(message.images, texts().imagesNotShown), leftOut(message.files, texts().filesNotShown)].flat();
  const heading = h("h2", { class: "sr-only" }, asked ? texts().question : texts().answer);
  return h("article", { class: `turn shared-${message.role}` }, heading, ...(message.text === "" ? [] : [asked ? question(message.text) : answer(message.text)]), ...left);
}

function question(text: string): HTMLElement {
  const view = new Question();
  view.show(text);
  return h("div", { class: "asked" }, view.element);
}

function answer(text: string): HTMLElement {
  const drawn = block("message");
  drawn.update({ kind: "message", at: 0, name: "", state: "whole", left: 0, text, seams: [] }, { writing: false, followed: false, last: false }, 0);
  return h("div", { class: "answer" }, h("div", { class: "body" }, drawn.element));
}

function leftOut(count: number, words: (count: number) => string): HTMLElement[] {
  return count === 0 ? [] : [h("p", { class: "rest" }, words(count))];
}

function date(ms: number): string {
  return new Intl.DateTimeFormat(texts().code, { dateStyle: "long" }).format(ms);
}
