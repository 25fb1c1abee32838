/* Shows the chat of a shared link. */

import { chatName, type SharedMessage } from "../core/sharedChat";
import { texts } from "../core/words";
import type { LinkContent } from "../edge/sharedLink";
import { block } from "./blocks";
import { enableCopying } from "./copyCode";
import { h } from "./dom";
import { Question } from "./question";

export class SharedView {
  private readonly heading = h("h1", { tabindex: "-1" }, texts().sharedChat);
  private readonly body = h("div", { class: "column" });

  /** `retry`: reads the chat again. */
  constructor(
    root: HTMLElement,
    private readonly retry: () => void,
  ) {
    const brand = h("span", { class: "shared-brand" }, h("img", { src: "/icon.svg", alt: "", width: "24", height: "24" }), h("span", {}, "Tailrace"));
    const top = h("header", { class: "shared-top" }, brand, h("a", { class: "primary", href: "/" }, texts().openTailrace));
    root.replaceChildren(h("div", { class: "shared" }, top, h("main", {}, this.body), h("footer", { class: "hint" }, texts().canBeWrong)));
    enableCopying(this.body);
    this.showNote(texts().sharedLoading);
  }

  show(content: LinkContent): void {
    if (content.kind === "chat") this.draw(content);
    else if (content.kind === "gone") this.showGone();
    else this.showNote(content.words, h("button", { type: "button", class: "continue", onclick: () => this.tryAgain() }, texts().tryAgain));
  }

  private draw({ title, sharedAt, endsAt, messages }: LinkContent & { kind: "chat" }): void {
    const name = chatName(title, messages);
    this.name(name === "" ? texts().sharedChat : name);
    const dates = h("p", { class: "shared-dates" }, texts().sharedOn(date(sharedAt)), " ", texts().sharedUntil(date(endsAt)));
    const elements = messages.length === 0 ? [h("p", { class: "note" }, texts().sharedEmpty)] : messages.map(messageOf);
    this.body.replaceChildren(this.heading, dates, ...elements);
  }

  private tryAgain(): void {
    this.showNote(texts().sharedLoading);
    this.heading.focus(); // the button is removed
    this.retry();
  }

  private showGone(): void {
    this.name(texts().sharedGone);
    this.body.replaceChildren(this.heading, h("p", { class: "note" }, texts().sharedGoneBecause));
  }

  private showNote(words: string, ...more: HTMLElement[]): void {
    this.name(texts().sharedChat);
    this.body.replaceChildren(this.heading, h("p", { class: "note", role: "status" }, words), ...more);
  }

  private name(words: string): void {
    this.heading.textContent = words;
    document.title = texts().pageTitle(words);
  }
}

function messageOf(message: SharedMessage): HTMLElement {
  const isQuestion = message.role === "user";
  const omissions = [omissionNote(message.images, texts().imagesNotShown), omissionNote(message.files, texts().filesNotShown)].flat();
  const heading = h("h2", { class: "sr-only" }, isQuestion ? texts().question : texts().answer);
  return h("article", { class: `turn shared-${message.role}` }, heading, ...(message.text === "" ? [] : [isQuestion ? question(message.text) : answer(message.text)]), ...omissions);
}

function question(text: string): HTMLElement {
  const view = new Question();
  view.show(text);
  return h("div", { class: "asked" }, view.element);
}

function answer(text: string): HTMLElement {
  const message = block("message");
  message.update({ kind: "message", at: 0, name: "", state: "whole", left: 0, text, seams: [] }, { writing: false, followed: false, last: false }, 0);
  return h("div", { class: "answer" }, h("div", { class: "body" }, message.element));
}

function omissionNote(count: number, words: (count: number) => string): HTMLElement[] {
  return count === 0 ? [] : [h("p", { class: "rest" }, words(count))];
}

function date(ms: number): string {
  return new Intl.DateTimeFormat(texts().code, { dateStyle: "long" }).format(ms);
}
