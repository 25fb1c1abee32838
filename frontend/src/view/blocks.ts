/* What an answer is made of, drawn: messages, reasoning and calls of tools. Names and arguments are the model's words, so
   they are text and nothing else. */

import { indented } from "../core/json";
import { seamWords } from "../core/messages";
import type { ReadPart as Part } from "../core/reading";
import { Notices } from "../core/seams";
import { coloured, MarkdownTree, type Node as Tree } from "../core/tree";
import { h, icon, setText } from "./dom";
import { bringFormulas, formulas } from "./maths";
import { patch } from "./patch";
import { Wide } from "./wide";

export interface Around {
  /** The answer goes on, and this is what it goes on with. */
  writing: boolean;
  /** Something follows in the same answer. */
  followed: boolean;
  /** Nothing was asked behind the answer. */
  last: boolean;
}

export interface Block {
  readonly kind: Part["kind"];
  readonly element: HTMLElement;
  /** Returns true when more is to be drawn later than now. */
  update(part: Part, around: Around, now: number): boolean;
}

export function block(kind: Part["kind"]): Block {
  if (kind === "message") return new Message();
  return kind === "reasoning" ? new Reasoning() : new Call(kind);
}

class Message implements Block {
  readonly kind = "message";
  readonly element = h("div", { class: "prose" });
  private readonly markdown = new MarkdownTree();
  private readonly notices = new Notices();
  /** What the element shows now. */
  private drawn: readonly Tree[] = [];
  private drawnText: string | null = null;
  private drawnRunning = false;
  private drawnSeams: Part["seams"] = [];
  /** Long answers cost more to draw, so they are drawn less often: not before this time. */
  private drawAgainAt = 0;
  private readonly wide = new Wide();

  constructor() {
    this.element.addEventListener("click", (event) => this.toNote(event.target as Element));
    this.element.addEventListener("copy", (event) => this.copySelected(event));
  }

  update({ text, seams }: Part, { writing }: Around, now: number): boolean {
    if (text === this.drawnText && writing === this.drawnRunning && same(seams, this.drawnSeams)) return false;
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
    const notices = this.drawnSeams.map((seam) => ({ at: seam.at, words: seamWords(seam) }));
    const tree = this.notices.put(this.markdown.render(text, this.drawnRunning, formulas()), text, notices);
    patch(this.element, this.drawn, tree);
    tree.forEach((node, place) => {
      if (node !== this.drawn[place]) this.wide.watch(this.element.childNodes[place]);
    });
    this.drawn = tree;
    if (this.markdown.waits) bringFormulas(this.formulasCame);
  }

  private readonly formulasCame = (): void => {
    if (this.drawnText !== null && this.element.isConnected) this.draw(this.drawnText);
  };

  // A drawn formula is copied as it was written: of what is seen, each character would stand on a line of its own.
  private copySelected(event: ClipboardEvent): void {
    const selected = getSelection();
    const parts = [...this.element.getElementsByClassName("as-written")];
    if (selected === null || !parts.some((part) => selected.containsNode(part, true))) return;
    this.element.classList.add("copying");
    event.clipboardData?.setData("text/plain", selected.toString());
    this.element.classList.remove("copying");
    event.preventDefault();
  }

  // Back leads to where the reader came from, or to the first place that refers to the note.
  private toNote(target: Element): void {
    const button = target.closest<HTMLElement>("button[data-note]");
    if (button === null) return;
    const number = button.dataset["note"] ?? "";
    const there = button.matches(".to-note") ? `.notes li[data-note="${number}"]` : `.to-note[data-note="${number}"]`;
    const found = [...this.element.querySelectorAll<HTMLElement>(there)];
    if (button.matches(".to-note")) {
      for (const each of this.element.querySelectorAll<HTMLElement>(".to-note[data-from]")) delete each.dataset["from"];
      button.dataset["from"] = "";
    }
    const to = found.find((each) => "from" in each.dataset) ?? found[0];
    to?.scrollIntoView({ block: "center" });
    to?.focus({ preventScroll: true });
  }
}

function same(a: Part["seams"], b: Part["seams"]): boolean {
  return a.length === b.length && a.every(({ at, to }, place) => at === b[place]?.at && to === b[place].to);
}

/** Open while nothing follows, until the reader decides. */
class Reasoning implements Block {
  readonly kind = "reasoning";
  readonly element: HTMLDetailsElement;
  private readonly thoughts = new Growing(h("div", { class: "thoughts", tabindex: "0", role: "group", "aria-label": "Thinking" }));
  private readonly rest = h("p", { class: "rest" });
  private chosen = false;

  constructor() {
    const summary = h("summary", { onclick: () => (this.chosen = true) }, icon("chevron"), h("span", {}, "Thinking"), wave());
    this.element = h("details", { class: "thinking" }, summary, this.thoughts.element, this.rest);
  }

  update({ text, left }: Part, { writing, followed }: Around): boolean {
    const open = !followed;
    const held = this.chosen || this.thoughts.element.contains(document.activeElement);
    if (!held && this.element.open !== open) this.element.open = open;
    this.element.dataset["writing"] = String(writing);
    this.thoughts.show([text]);
    leave(this.rest, left);
    return false;
  }
}

class Call implements Block {
  readonly element: HTMLElement;
  private readonly name = h("bdi", { class: "call-name" });
  private readonly state = h("span", { class: "call-state" });
  private readonly content = h("code");
  private readonly box = new Growing(h("pre", { tabindex: "0", "aria-label": "Arguments" }), this.content);
  private readonly rest = h("p", { class: "rest" });
  private drawnText: string | null = null;
  private drawnWhole = false;

  constructor(readonly kind: "function" | "custom") {
    const copy = h("button", { type: "button", class: "copy-code", "aria-label": "Copy arguments" }, "Copy");
    const head = h("div", { class: "code-head" }, icon("tool"), this.name, this.state, wave(), copy);
    this.element = h("div", { class: "code call", role: "group" }, head, this.box.element, this.rest);
  }

  update({ text, name, state, left }: Part, around: Around): boolean {
    const called = name === "" ? "a tool without a name" : name;
    setText(this.name, called);
    this.name.title = called;
    this.element.setAttribute("aria-label", `Call of ${called}`);
    this.element.dataset["writing"] = String(around.writing && state === "open");
    setText(this.state, callState(state, around));
    leave(this.rest, left);
    const whole = state === "whole" && left === 0;
    if (text === this.drawnText && whole === this.drawnWhole) return false;
    this.drawnText = text;
    this.drawnWhole = whole;
    const json = whole && this.kind === "function" ? indented(text) : null;
    this.box.show(json === null ? [text] : coloured(json, "json"));
    this.box.element.hidden = text === "";
    return false;
  }
}

export function callState(state: Part["state"], { writing, last }: Around): string {
  if (state === "whole") return last ? "Waiting for its output" : "No output was given";
  return state === "open" && writing ? "Writing" : "Cut off";
}

/** Text in a box of limited height, which stays at the end of the text while the reader is there. */
class Growing {
  private drawn: readonly Tree[] = [];

  constructor(
    readonly element: HTMLElement,
    private readonly content: HTMLElement = element,
  ) {
    if (content !== element) element.append(content);
  }

  show(tree: readonly Tree[]): void {
    if (tree.length === 1 && this.drawn.length === 1 && tree[0] === this.drawn[0]) return;
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    const atEnd = scrollHeight > clientHeight && scrollHeight - scrollTop - clientHeight < 8;
    const overflows = scrollHeight > clientHeight;
    patch(this.content, this.drawn, tree);
    this.drawn = tree;
    if (atEnd || !overflows) this.element.scrollTop = this.element.scrollHeight;
  }
}

function leave(rest: HTMLElement, left: number): void {
  rest.hidden = left === 0;
  setText(rest, left === 0 ? "" : `${left} more characters are not kept here.`);
}

/** Dots that move; shown where something is being written. */
export function wave(): HTMLElement {
  return h("span", { class: "wave", "aria-hidden": "true" }, h("i"), h("i"), h("i"));
}
