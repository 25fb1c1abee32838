/* Draws the parts of an answer: messages, reasoning and calls of tools. Names and arguments come
   from the model, so they are drawn as text. */

import { indentJson } from "../core/json";
import type { Node as Tree } from "../core/nodes";
import type { ReadablePart as Part } from "../core/reading";
import { texts } from "../core/words";
import { colours } from "./answerParts";
import { h, icon, setText } from "./dom";
import { markdown } from "./lazyMarkdown";
import type { MarkdownView } from "./markdown";
import { patch } from "./patch";

export interface BlockContext {
  /** The answer is running, and this is its newest part. */
  writing: boolean;
  /** Another part follows in the same answer. */
  followed: boolean;
  /** No turn follows the answer. */
  last: boolean;
}

export interface Block {
  readonly kind: Part["kind"];
  readonly element: HTMLElement;
  /** Returns true when it must be drawn again later. */
  update(part: Part, around: BlockContext, now: number): boolean;
}

export function block(kind: Part["kind"]): Block {
  if (kind === "message") return new Message();
  return kind === "reasoning" ? new Reasoning() : new Call(kind);
}

class Message implements Block {
  readonly kind = "message";
  readonly element = h("div", { class: "prose" });
  private view: MarkdownView | null = null;
  private drawnText: string | null = null;
  private drawnRunning = false;
  private drawnSeams: Part["seams"] = [];
  /** A running answer is not drawn before this time. Long answers cost more, so they are drawn less
      often. */
  private drawAgainAt = 0;

  update({ text, seams }: Part, { writing }: BlockContext, now: number): boolean {
    if (text === this.drawnText && writing === this.drawnRunning && sameSeams(seams, this.drawnSeams)) return false;
    if (writing && now < this.drawAgainAt) return true;
    const started = performance.now();
    this.drawnText = text;
    this.drawnRunning = writing;
    this.drawnSeams = seams;
    this.draw(text);
    const cost = performance.now() - started;
    this.drawAgainAt = cost < 6 ? 0 : now + cost * 4;
    return false;
  }

  private draw(text: string): void {
    if (this.view === null && markdown.value !== null) this.view = new markdown.value.MarkdownView(this.element, this.redraw);
    if (this.view === null) this.showSource(text);
    else this.view.draw(text, this.drawnRunning, this.drawnSeams);
  }

  // Markdown is loaded almost at once. With a slow network or none, the source is shown.
  private showSource(text: string): void {
    markdown.load(this.redraw);
    if (text !== "" && !markdown.isLoading) this.element.replaceChildren(h("p", { class: "unparsed", dir: "auto" }, text));
  }

  private readonly redraw = (): void => {
    if (this.drawnText !== null && this.element.isConnected) this.draw(this.drawnText);
  };
}

function sameSeams(a: Part["seams"], b: Part["seams"]): boolean {
  return a.length === b.length && a.every(({ at, to }, place) => at === b[place]?.at && to === b[place].to);
}

/** Open while no other part follows, until the reader opens or closes it. */
class Reasoning implements Block {
  readonly kind = "reasoning";
  readonly element: HTMLDetailsElement;
  private readonly thoughts = new GrowingText(h("div", { class: "thoughts", tabindex: "0", role: "group", "aria-label": texts().thinking }));
  private readonly rest = h("p", { class: "rest" });
  private isToggled = false;

  constructor() {
    const summary = h("summary", { onclick: () => (this.isToggled = true) }, icon("chevron"), h("span", {}, texts().thinking), wave());
    this.element = h("details", { class: "thinking" }, summary, this.thoughts.element, this.rest);
  }

  update({ text, left }: Part, { writing, followed }: BlockContext): boolean {
    const open = !followed;
    const isHeld = this.isToggled || this.thoughts.element.contains(document.activeElement);
    if (!isHeld && this.element.open !== open) this.element.open = open;
    this.element.dataset["writing"] = String(writing);
    this.thoughts.show([text]);
    showRest(this.rest, left);
    return false;
  }
}

class Call implements Block {
  readonly element: HTMLElement;
  private readonly name = h("bdi", { class: "call-name" });
  private readonly state = h("span", { class: "call-state" });
  private readonly content = h("code");
  private readonly box = new GrowingText(h("pre", { tabindex: "0", "aria-label": texts().arguments }), this.content);
  private readonly rest = h("p", { class: "rest" });
  private drawnText: string | null = null;
  private drawnWhole = false;

  constructor(readonly kind: "function" | "custom") {
    const copy = h("button", { type: "button", class: "copy-code", "aria-label": texts().copyArguments }, texts().copy);
    const head = h("div", { class: "code-head" }, icon("tool"), this.name, this.state, wave(), copy);
    this.element = h("div", { class: "code call", role: "group" }, head, this.box.element, this.rest);
  }

  update({ text, name, state, left }: Part, context: BlockContext): boolean {
    const label = name === "" ? texts().namelessTool : name;
    setText(this.name, label);
    this.name.title = label;
    this.element.setAttribute("aria-label", texts().callOf(label));
    this.element.dataset["writing"] = String(context.writing && state === "open");
    setText(this.state, callState(state, context));
    showRest(this.rest, left);
    const whole = state === "whole" && left === 0;
    if (text === this.drawnText && whole === this.drawnWhole) return false;
    this.drawnText = text;
    this.drawnWhole = whole;
    const json = whole && this.kind === "function" ? indentJson(text) : null;
    this.show(text, json);
    this.box.element.hidden = text === "";
    return false;
  }

  private show(text: string, json: string | null): void {
    this.box.show(json === null ? [text] : (colours.value?.(json, "json") ?? [json]));
    if (json === null || colours.value !== null) return;
    colours.load(() => {
      if (text === this.drawnText && this.element.isConnected) this.show(text, json);
    });
  }
}

export function callState(state: Part["state"], { writing, last }: BlockContext): string {
  if (state === "whole") return last ? texts().callWaits : texts().callWithoutOutput;
  return state === "open" && writing ? texts().callWriting : texts().callCutOff;
}

/** Text in a box of limited height. It scrolls with the text while the reader is at its end. */
class GrowingText {
  private drawnTree: readonly Tree[] = [];

  constructor(
    readonly element: HTMLElement,
    private readonly content: HTMLElement = element,
  ) {
    if (content !== element) element.append(content);
  }

  show(tree: readonly Tree[]): void {
    if (tree.length === 1 && this.drawnTree.length === 1 && tree[0] === this.drawnTree[0]) return;
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    const atEnd = scrollHeight > clientHeight && scrollHeight - scrollTop - clientHeight < 8;
    const overflows = scrollHeight > clientHeight;
    patch(this.content, this.drawnTree, tree);
    this.drawnTree = tree;
    if (atEnd || !overflows) this.element.scrollTop = this.element.scrollHeight;
  }
}

function showRest(rest: HTMLElement, count: number): void {
  rest.hidden = count === 0;
  setText(rest, count === 0 ? "" : texts().moreCharacters(count));
}

/** Moving dots: something is being written. */
export function wave(): HTMLElement {
  return h("span", { class: "wave", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
}
