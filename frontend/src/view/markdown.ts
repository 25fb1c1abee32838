/* Draws a text as Markdown. With the parser this is a third of the page's script. A new chat does
   not need it at first, so it is loaded (lazyMarkdown.ts) when there is a text to draw. */

import { seamWords } from "../core/messages";
import type { Seam } from "../core/reading";
import { Notices } from "../core/seams";
import { MarkdownTree, type Node as Tree } from "../core/tree";
import { colours, formulas } from "./answerParts";
import { diagrams } from "./diagrams";
import { patch } from "./patch";
import { Wide } from "./wide";

export { speech } from "../core/speech";

export class MarkdownView {
  private readonly markdown = new MarkdownTree();
  private readonly notices = new Notices();
  /** The tree that the element shows. */
  private drawnTree: readonly Tree[] = [];
  private readonly wide = new Wide();

  /** `redraw`: called when the drawing of formulas or colours was loaded. */
  constructor(
    private readonly element: HTMLElement,
    private readonly redraw: () => void,
  ) {
    element.replaceChildren();
    element.addEventListener("click", (event) => this.toNote(event.target as Element));
    element.addEventListener("copy", (event) => this.copySelected(event));
  }

  draw(text: string, running: boolean, seams: readonly Seam[]): void {
    const notices = seams.map((seam) => ({ at: seam.at, words: seamWords(seam) }));
    const tree = this.notices.insertInto(this.markdown.render(text, running, formulas.value, colours.value), text, notices);
    patch(this.element, this.drawnTree, tree);
    tree.forEach((node, place) => {
      if (node === this.drawnTree[place]) return;
      this.wide.watch(this.element.childNodes[place]);
      diagrams.watch(this.element.childNodes[place]);
    });
    this.drawnTree = tree;
    if (this.markdown.waitsForFormulas) formulas.load(this.redraw);
    if (this.markdown.waitsForColours) colours.load(this.redraw);
  }

  // Copies the source of drawn formulas: their visible characters would each be on a line of their
  // own.
  private copySelected(event: ClipboardEvent): void {
    const selected = getSelection();
    const parts = [...this.element.getElementsByClassName("as-written")];
    if (selected === null || !parts.some((part) => selected.containsNode(part, true))) return;
    this.element.classList.add("copying");
    event.clipboardData?.setData("text/plain", selected.toString());
    this.element.classList.remove("copying");
    event.preventDefault();
  }

  // The way back leads to the reference that the reader used, otherwise to the first one.
  private toNote(clicked: Element): void {
    const button = clicked.closest<HTMLElement>("button[data-note]");
    if (button === null) return;
    const number = button.dataset["note"] ?? "";
    const there = button.matches(".to-note") ? `.notes li[data-note="${number}"]` : `.to-note[data-note="${number}"]`;
    const targets = [...this.element.querySelectorAll<HTMLElement>(there)];
    if (button.matches(".to-note")) {
      for (const each of this.element.querySelectorAll<HTMLElement>(".to-note[data-from]")) delete each.dataset["from"];
      button.dataset["from"] = "";
    }
    const target = targets.find((each) => "from" in each.dataset) ?? targets[0];
    target?.scrollIntoView({ block: "center" });
    target?.focus({ preventScroll: true });
  }
}
