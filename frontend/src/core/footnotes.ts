/* Footnotes: `[^label]` in the text refers to `[^label]: text`, which is shown at the end of the
   answer. They are numbered in the order of their first reference. No element gets an id: the page
   finds a note and its references by number, so two answers do not collide, and the page's address
   stays that of the conversation. */

import type { MarkedExtension, Token, Tokens } from "marked";
import { el, type El, type Node } from "./nodes";
import { texts } from "./words";

export interface RefToken extends Tokens.Generic {
  type: "noteRef";
  label: string;
}

export interface NoteToken extends Tokens.Generic {
  type: "note";
  label: string;
  tokens: Token[];
}

export interface Footnote {
  readonly label: string;
  readonly content: readonly Node[];
}

export interface NoteNumber {
  readonly number: number;
  /** Whether the text of the note has arrived. */
  readonly hasText: boolean;
}

const LABEL = "\\[\\^([^\\]\\s[]{1,100})\\]";
const DEFINITION = new RegExp(`^ {0,3}${LABEL}:[ \\t]*([^\\n]*)(?:\\n|$)`);
const REFERENCE = new RegExp(`^${LABEL}(?!\\()`);
/** A line without indentation that is not the next line of a note. */
const OTHER_BLOCK = /^ {0,3}(?:\[\^|[#>|]|`{3}|~{3}|[-*+][ \t]|\d{1,9}[.)][ \t]|(?:[-*_][ \t]*){3,}$)/;

/** The extension of the parser. */
export const FOOTNOTES: MarkedExtension = {
  extensions: [
    {
      name: "note",
      level: "block",
      childTokens: ["tokens"],
      start: (text: string) => {
        const match = new RegExp(`\\n {0,3}${LABEL}:`).exec(text);
        return match === null ? undefined : match.index + 1;
      },
      tokenizer(text: string): NoteToken | undefined {
        const first = DEFINITION.exec(text);
        if (first === null) return undefined;
        const [head, label = "", words = ""] = first;
        const more = noteLines(text.slice(head.length));
        const content = [words, ...more.split("\n").map((line) => line.replace(/^(?: {1,4}|\t)/, ""))].join("\n");
        const { state } = this.lexer;
        const { top } = state;
        state.top = true;
        const tokens = this.lexer.blockTokens(content, []);
        state.top = top;
        return { type: "note", raw: head + more, label: label.toLowerCase(), tokens };
      },
    },
    {
      name: "noteRef",
      level: "inline",
      start: (text: string) => {
        const at = text.indexOf("[^");
        return at === -1 ? undefined : at;
      },
      tokenizer(text: string): RefToken | undefined {
        const match = REFERENCE.exec(text);
        return match === null ? undefined : { type: "noteRef", raw: match[0], label: (match[1] ?? "").toLowerCase() };
      },
    },
  ],
};

/** The further lines of a note. */
function noteLines(text: string): string {
  let end = 0;
  let blank = false;
  for (let at = 0; at < text.length; ) {
    const newline = text.indexOf("\n", at);
    const next = newline === -1 ? text.length : newline + 1;
    const line = text.slice(at, next).trimEnd();
    at = next;
    if (line === "") {
      blank = true;
      continue;
    }
    if (!/^(?: {2}|\t)/.test(line) && (blank || OTHER_BLOCK.test(line))) break;
    blank = false;
    end = next;
  }
  return text.slice(0, end);
}

export function reference(token: RefToken): El {
  return { ...el("sup", [token.raw]), note: token.label };
}

/** The text of a note at the place where the parser met it. `MarkdownTree` moves it to the end. */
export function noteText({ label }: NoteToken, content: readonly Node[]): El {
  return { ...el("div", content), note: label };
}

interface BlockNotes {
  readonly refs: readonly string[];
  readonly notes: readonly Footnote[];
}

/** By label. While the text runs, a numeric label counts as a reference whose note arrives later. */
export function numberNotes(blocks: readonly BlockNotes[], running: boolean): ReadonlyMap<string, NoteNumber> {
  const withText = new Set(blocks.flatMap(({ notes }) => notes.map(({ label }) => label)));
  const numbers = new Map<string, NoteNumber>();
  for (const { refs } of blocks) {
    for (const label of refs) {
      if (numbers.has(label) || !(withText.has(label) || (running && /^\d{1,3}$/.test(label)))) continue;
      numbers.set(label, { number: numbers.size + 1, hasText: withText.has(label) });
    }
  }
  // A note without a reference is shown too.
  for (const label of withText) if (!numbers.has(label)) numbers.set(label, { number: numbers.size + 1, hasText: true });
  return numbers;
}

/** A key of how the references of a block are drawn. */
export function referenceKey({ refs }: BlockNotes, numbers: ReadonlyMap<string, NoteNumber>): string {
  return refs.map((label) => `${numbers.get(label)?.number ?? "-"}${numbers.get(label)?.hasText === true ? "!" : "?"}`).join(" ");
}

export function withNumbers(nodes: readonly Node[], numbers: ReadonlyMap<string, NoteNumber>): readonly Node[] {
  return nodes.map((node) => {
    if (typeof node === "string") return node;
    if (node.note !== undefined) return drawReference(node, numbers.get(node.note));
    const children = withNumbers(node.children, numbers);
    return children.every((child, place) => child === node.children[place]) ? node : { ...node, children };
  });
}

function drawReference(node: El, note: NoteNumber | undefined): Node {
  if (note === undefined) return node.children[0] ?? "";
  const number = String(note.number);
  // The same element before the note has arrived, so that nothing moves when it does.
  const waiting: El["attributes"] = note.hasText ? {} : { disabled: "" };
  const button = el("button", [number], { type: "button", class: "to-note", "data-note": number, "aria-label": texts().footnote(number), ...waiting });
  return el("sup", [button], { class: "note-ref" });
}

/** The notes at the end of the answer; null where there are none. */
export function section(blocks: readonly BlockNotes[], numbers: ReadonlyMap<string, NoteNumber>): El | null {
  const first = new Map<string, Footnote>();
  for (const note of blocks.flatMap(({ notes }) => notes)) if (!first.has(note.label)) first.set(note.label, note);
  if (first.size === 0) return null;
  const referred = new Set(blocks.flatMap(({ refs }) => refs));
  const items = [...first.values()]
    .map((note) => ({ ...note, number: numbers.get(note.label)?.number ?? 0 }))
    .sort((a, b) => a.number - b.number)
    .map(({ label, content, number }) => item(withNumbers(content, numbers), number, referred.has(label)));
  return el("div", [el("ol", items)], { class: "notes", role: "group", "aria-label": texts().footnotes });
}

function item(content: readonly Node[], number: number, referred: boolean): El {
  const value = String(number);
  const back = el("button", ["↩"], { type: "button", class: "from-note", "data-note": value, "aria-label": texts().backToFootnote(value) });
  return el("li", referred ? [...content, back] : content, { value, tabindex: "-1", "data-note": value, dir: "auto" });
}
