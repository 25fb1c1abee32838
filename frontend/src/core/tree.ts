/* Markdown as a tree of plain objects. HTML text is never created or parsed: markup that the model
   wrote stays text, and the tree has a closed set of tags and attributes (nodes.ts). */

import { Lexer, Marked, type Token, type Tokens, type TokensList } from "marked";
import { referenceKey, FOOTNOTES, noteText, numberNotes, reference, section, withNumbers, type Footnote, type NoteToken, type RefToken } from "./footnotes";
import { restore, shelter, split, type Formula, type ShelteredText } from "./formulas";
import { el, type El, type Node, type Tag } from "./nodes";
import { drawable } from "./partialMarkdown";
import { texts } from "./words";

export type { Attribute, El, Node, Tag } from "./nodes";

/** The nodes of a formula, or why it cannot be drawn. */
export type Typeset = (tex: string, display: boolean) => { readonly nodes: readonly Node[] } | { readonly problem: string };
/** Code in the colours of its language; without colours where the language is not known. */
export type Colour = (code: string, language: string) => readonly Node[];

// Line breaks in a model's answer are intended.
const marked = new Marked({ gfm: true, breaks: true }, FOOTNOTES);

/** A top-level block of the text. */
interface Block {
  readonly nodes: readonly Node[];
  /** The footnotes that the block refers to, and those whose text is in it. */
  readonly refs: readonly string[];
  readonly notes: readonly Footnote[];
  /** `nodes` with the numbers of the footnotes, as last drawn; null before the first drawing. */
  drawing: { readonly nodes: readonly Node[]; readonly as: string } | null;
}

interface Finished {
  readonly source: string;
  readonly blocks: readonly Block[];
  readonly links: Links;
}

type Originals = ShelteredText["originals"];
type Links = TokensList["links"];

const NOTHING_FINISHED: Finished = { source: "", blocks: [], links: {} };

class Unparsable extends Error {}

/** Draws one answer repeatedly while it grows. Unchanged blocks stay the same objects. While the
    answer runs, blocks that can no longer change are not parsed again. */
export class MarkdownTree {
  /** Whether formulas are shown as their source, because there was no `Typeset` yet. */
  waitsForFormulas = false;
  /** Whether code has no colours, because there was no `Colour` yet. */
  waitsForColours = false;
  /** Blocks by source: all of the finished part, and those of the last drawing. */
  private readonly finishedBlocks = new Map<string, Block>();
  private lastBlocks: ReadonlyMap<string, Block> = new Map();
  /** The part of a running text that can no longer change. `links`: the definitions in it. */
  private finished: Finished = NOTHING_FINISHED;
  /** Where the last line began at the last call of `finish`. */
  private scanEnd = 0;
  /** All link definitions. A late one turns earlier text into links, so blocks are reused only
      while these are the same. */
  private links: Links = {};
  private readonly formulas = new Map<string, El>();
  private typeset: Typeset | null = null;
  private colour: Colour | null = null;

  render(source: string, running: boolean, typeset: Typeset | null = null, colour: Colour | null = null): Node[] {
    const text = source.includes("\r") ? source.replace(/\r\n?/g, "\n") : source;
    if (typeset !== this.typeset || colour !== this.colour) {
      this.typeset = typeset;
      this.colour = colour;
      this.waitsForFormulas = this.waitsForColours = false;
      this.formulas.clear();
      this.forget();
      this.restart();
    }
    if (!running || !text.startsWith(this.finished.source)) this.restart();
    try {
      if (running) this.finish(text);
      return drawBlocks(this.blocksOf(text, running), running);
    } catch (problem) {
      if (!(problem instanceof Unparsable)) throw problem;
      return [el("p", [text], { class: "unparsed", dir: "auto" })];
    }
  }

  private restart(): void {
    this.finished = NOTHING_FINISHED;
    this.scanEnd = 0;
  }

  private forget(): void {
    this.finishedBlocks.clear();
    this.lastBlocks = new Map();
  }

  private blocksOf(text: string, running: boolean): Block[] {
    const { text: markdown, originals } = shelter(text.slice(this.finished.source.length), running);
    const tokens = lex(running ? drawable(markdown) : markdown, this.finished.links);
    const links = restoreLinks(tokens.links, originals);
    if (!sameLinks(links, this.links)) {
      this.links = links;
      this.forget();
      const part = this.finished.source !== "";
      this.restart();
      if (part) return this.blocksOf(text, running);
    }
    const next = new Map<string, Block>();
    const last = tokens.map((token) => this.block(token, originals, next));
    this.lastBlocks = next;
    return [...this.finished.blocks, ...last];
  }

  // A block is finished when an empty line and the complete first line of another block follow:
  // then no more text belongs to it. So each new line parses only the text after the last finished
  // block.
  private finish(text: string): void {
    const lastLine = text.lastIndexOf("\n") + 1;
    if (lastLine <= this.scanEnd) return;
    this.scanEnd = lastLine;
    const lines = text.slice(this.finished.source.length, lastLine);
    if (!BLANK_LINE.test(lines)) return;
    const { text: markdown, originals } = shelter(lines, true);
    const tokens = lex(markdown, this.finished.links);
    if (!sameLinks(restoreLinks(tokens.links, originals), this.links)) return;
    const last = tokens.findLastIndex(({ type }, place) => type !== "space" && BLANK_LINE_END.test(tokens[place - 1]?.raw ?? ""));
    if (last === -1) return;
    const before = tokens.slice(0, last);
    const source = before.map(({ raw }) => restore(raw, originals)).join("");
    if (!lines.startsWith(source)) return;
    const blocks = before.map((token) => this.block(token, originals, this.finishedBlocks));
    const links = Object.keys(this.links).length === 0 ? {} : { ...linksIn(source), ...this.finished.links };
    this.finished = { source: this.finished.source + source, blocks: [...this.finished.blocks, ...blocks], links };
  }

  private block(token: Token, originals: Originals, cache: Map<string, Block>): Block {
    const open = originals.some((one, number) => typeof one !== "string" && one.open && token.raw.includes(`⸨${number}⸩`));
    const key = `${token.type}${open ? "…" : ""} ${restore(token.raw, originals)}`;
    const one = cache.get(key) ?? this.finishedBlocks.get(key) ?? this.lastBlocks.get(key) ?? this.build(token, originals);
    cache.set(key, one);
    return one;
  }

  private build(token: Token, originals: Originals): Block {
    marked.walkTokens([token], (each) => restoreCode(each, originals));
    const refs: string[] = [];
    const notes: Footnote[] = [];
    const resolve = (nodes: readonly Node[]): Node[] =>
      withoutBreaks(
        nodes.flatMap((node): Node[] => {
          if (typeof node === "string") return split(node, originals).map((part) => (typeof part === "string" ? part : this.formula(part)));
          if (node.tag === "code") return [this.highlightCode(node)];
          if (node.note !== undefined && node.tag === "sup") {
            refs.push(node.note);
            return [node];
          }
          const children = resolve(node.children);
          if (node.note !== undefined) {
            notes.push({ label: node.note, content: children });
            return [];
          }
          return [children.length === node.children.length && children.every((child, place) => child === node.children[place]) ? node : { ...node, children }];
        }),
      );
    return { nodes: resolve(block(token)), refs, notes, drawing: null };
  }

  private highlightCode(code: El): El {
    const [text] = code.children;
    if (code.language === undefined || typeof text !== "string") return code;
    if (this.colour !== null) return { ...code, children: this.colour(text, code.language) };
    this.waitsForColours = true;
    return code;
  }

  private formula({ source, tex, display, open }: Formula): El {
    const key = `${display ? "d" : "i"}${open ? "…" : ""} ${source}`;
    const existing = this.formulas.get(key);
    if (existing !== undefined) return existing;
    const drawing = open ? null : (this.typeset?.(tex, display) ?? null);
    if (drawing === null) this.waitsForFormulas = true;
    const kind = display ? "math display" : "math";
    const base =
      drawing !== null && "nodes" in drawing
        ? el("span", [...drawing.nodes, el("span", [source], { class: "as-written", "aria-hidden": "true" })], { class: `${kind}${display ? " wide" : ""}`, dir: "ltr" })
        : el("span", [source], { class: `${kind} source`, dir: "ltr", ...(drawing === null ? {} : { title: texts().formulaFailed(drawing.problem) }) });
    const element = { ...base, counts: source.length };
    if (!open) this.formulas.set(key, element);
    return element;
  }
}

const BLANK_LINE = /\n[ \t]*\n/;
const BLANK_LINE_END = /\n[ \t]*\n$/;

function drawBlocks(blocks: readonly Block[], running: boolean): Node[] {
  if (blocks.every(({ refs, notes }) => refs.length === 0 && notes.length === 0)) return blocks.flatMap(({ nodes }) => nodes);
  const numbers = numberNotes(blocks, running);
  const notes = section(blocks, numbers);
  return [...blocks.flatMap((one) => withReferences(one, numbers)), ...(notes === null ? [] : [notes])];
}

function withReferences(one: Block, numbers: ReturnType<typeof numberNotes>): readonly Node[] {
  if (one.refs.length === 0) return one.nodes;
  const as = referenceKey(one, numbers);
  if (one.drawing?.as !== as) one.drawing = { as, nodes: withNumbers(one.nodes, numbers) };
  return one.drawing.nodes;
}

// A text that the parser cannot handle (nested thousands deep) is shown unchanged.
function lex(text: string, links: Links): TokensList {
  const lexer = new Lexer(marked.defaults);
  Object.assign(lexer.tokens.links, links);
  try {
    return lexer.lex(text);
  } catch {
    throw new Unparsable();
  }
}

function linksIn(source: string): Links {
  const { text, originals } = shelter(source, false);
  return restoreLinks(lex(text, {}).links, originals);
}

function restoreLinks(links: Links, originals: Originals): Links {
  return Object.fromEntries(
    Object.entries(links).map(([label, { href, title }]) => [restore(label, originals), { href: href === null ? href : restore(href, originals), title: title == null ? title : restore(title, originals) }]),
  ) as Links;
}

function sameLinks(a: Links, b: Links): boolean {
  const labels = Object.keys(a);
  return labels.length === Object.keys(b).length && labels.every((label) => a[label]?.href === b[label]?.href && a[label]?.title === b[label]?.title);
}

// Code and addresses have no formulas. An indented block of formulas alone is not code: it was
// indented too far.
function restoreCode(token: Token, originals: Originals): void {
  if (token.type === "code") {
    const code = token as Tokens.Code;
    if (code.codeBlockStyle === "indented" && split(code.text, originals).every((part) => (typeof part === "string" ? part.trim() === "" : part.display))) {
      Object.assign(token, { type: "paragraph", tokens: [{ type: "text", raw: code.text, text: code.text }] });
      return;
    }
    code.text = restore(code.text, originals);
    if (code.lang !== undefined) code.lang = restore(code.lang, originals);
  } else if (token.type === "codespan") {
    token.text = restore((token as Tokens.Codespan).text, originals);
  } else if (token.type === "link" || token.type === "image") {
    const link = token as Tokens.Link | Tokens.Image;
    link.href = restore(link.href, originals);
    if (link.title) link.title = restore(link.title, originals);
    if (token.type === "image") link.text = restore(link.text, originals);
  }
}

// Removes line breaks around a formula on a line of its own.
function withoutBreaks(nodes: readonly Node[]): Node[] {
  const isDisplayed = (node: Node | undefined): boolean => typeof node === "object" && node.counts !== undefined && node.attributes.class?.includes("display") === true;
  return nodes.filter((node, place) => typeof node === "string" || node.tag !== "br" || !(isDisplayed(nodes[place - 1]) || isDisplayed(nodes[place + 1])));
}

function blocks(tokens: readonly Token[] | undefined): Node[] {
  return (tokens ?? []).flatMap(block);
}

function block(token: Token): Node[] {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [heading(token as Tokens.Heading)];
    case "paragraph":
      return [paragraph(inline(token.tokens))];
    case "text":
      return token.tokens === undefined ? [plain((token as Tokens.Text).text)] : inline(token.tokens);
    case "code":
      return [codeBlock(token as Tokens.Code)];
    case "blockquote":
      return [container("blockquote", blocks(token.tokens))];
    case "list":
      return [list(token as Tokens.List)];
    case "table":
      return [table(token as Tokens.Table)];
    case "hr":
      return [el("hr", [])];
    case "checkbox":
      return [checkbox((token as Tokens.Checkbox).checked)];
    case "html":
      return [paragraph([(token as Tokens.HTML).text.trimEnd()])];
    case "note":
      return [noteText(token as NoteToken, blocks(token.tokens))];
    default:
      return [paragraph(inline([token]))];
  }
}

// The first letter decides the direction of a text. A box gets the direction of the first text in
// it: for `auto`, a browser ignores children with their own `dir`.
function paragraph(children: readonly Node[]): El {
  return el("p", children, { dir: "auto" });
}

function container(tag: Tag, children: readonly Node[], attributes: El["attributes"] = {}): El {
  return el(tag, children, { ...attributes, dir: direction(children) ?? "auto" });
}

const STRONG = /[\p{L}\p{Nl}]/u;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

/** The direction of the first letter outside code; null without a letter. */
export function direction(nodes: readonly Node[]): "ltr" | "rtl" | null {
  for (const node of nodes) {
    if (typeof node !== "string" && (node.tag === "code" || node.attributes.class === "code")) continue;
    const letter = typeof node === "string" ? STRONG.exec(node)?.[0] : undefined;
    const side = typeof node === "string" ? letter && (RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr") : direction(node.children);
    if (side) return side;
  }
  return null;
}

// The look is the model's level. For assistive technology, the heading is below the page's heading
// of the answer (level 3).
function heading(token: Tokens.Heading): El {
  const depth = Math.min(6, Math.max(1, token.depth));
  return el(`h${depth}` as Tag, inline(token.tokens), { "aria-level": String(Math.min(6, depth + 3)), dir: "auto" });
}

function inline(tokens: readonly Token[] | undefined): Node[] {
  return (tokens ?? []).map(phrase);
}

function phrase(token: Token): Node {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return el(token.type, inline(token.tokens));
    case "codespan":
      return el("code", [(token as Tokens.Codespan).text], { dir: "ltr" });
    case "br":
      return el("br", []);
    case "link":
      return link(token as Tokens.Link);
    case "image":
      return picture(token as Tokens.Image);
    case "noteRef":
      return reference(token as RefToken);
    case "escape":
      return (token as Tokens.Escape).text;
    case "html":
      return (token as Tokens.HTML).raw;
    case "checkbox":
      return checkbox((token as Tokens.Checkbox).checked);
    default:
      return "tokens" in token && token.tokens !== undefined ? el("span", inline(token.tokens)) : plain((token as Tokens.Text).text ?? token.raw);
  }
}

function link(token: Tokens.Link): Node {
  const href = safeAddress(token.href);
  if (href === null) return el("span", inline(token.tokens));
  return el("a", inline(token.tokens), {
    href,
    rel: "noopener noreferrer nofollow",
    target: "_blank",
    ...(token.title ? { title: decodeEntities(token.title) } : {}),
  });
}

// An image would be fetched from any address in the text, and its server would learn that the
// answer was read. So it is a link.
function picture(token: Tokens.Image): Node {
  const href = safeAddress(token.href);
  const words = decodeEntities(token.text) || "image";
  return href === null ? words : el("a", [words], { href, rel: "noopener noreferrer nofollow", target: "_blank", class: "picture" });
}

/** The address if it runs no code when the reader follows it; null for all others. */
export function safeAddress(address: string): string | null {
  try {
    const url = new URL(decodeEntities(address));
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function list(token: Tokens.List): El {
  const start: El["attributes"] = token.ordered && token.start !== "" && token.start !== 1 ? { start: String(token.start) } : {};
  const items = token.items.map((item) => listItem(item));
  const sides = new Set(items.map((item) => direction(item.children)));
  const mixed: El["attributes"] = sides.has("ltr") && sides.has("rtl") ? { class: "mixed" } : {};
  return container(token.ordered ? "ol" : "ul", items, { ...start, ...mixed });
}

function listItem(item: Tokens.ListItem): El {
  const box = item.task && !item.tokens.some((token) => token.type === "checkbox" || firstIsBox(token));
  const content = [...(box ? [checkbox(item.checked ?? false)] : []), ...blocks(item.tokens)];
  const kind: El["attributes"] = item.task ? { class: "task" } : {};
  const holdsBlocks = content.some((node) => typeof node !== "string" && node.attributes.dir !== undefined && !["code", "ul", "ol"].includes(node.tag));
  return holdsBlocks ? container("li", content, kind) : el("li", content, { ...kind, dir: "auto" });
}

function firstIsBox(token: Token): boolean {
  return "tokens" in token && token.tokens?.[0]?.type === "checkbox";
}

function checkbox(checked: boolean): El {
  return el("input", [], { type: "checkbox", disabled: "", "aria-label": checked ? texts().done : texts().notDone, ...(checked ? { checked: "" } : {}) });
}

function table(token: Tokens.Table): El {
  const cells = (row: Tokens.TableCell[], tag: "th" | "td"): El[] =>
    row.map((cell) => el(tag, inline(cell.tokens), { dir: "auto", ...(cell.align === null ? {} : { class: `align-${cell.align}` }) }));
  const grid = container("table", [
    el("thead", [el("tr", cells(token.header, "th"))]),
    el("tbody", token.rows.map((row) => el("tr", cells(row, "td")))),
  ]);
  return el("div", [grid], { class: "table wide" });
}

function codeBlock(token: Tokens.Code): El {
  const language = (token.lang ?? "").trim().split(/[\s{]/)[0] ?? "";
  const code = el("code", [token.text]);
  const name = el("span", [language === "" ? texts().codeWithoutLanguage : language]);
  const copy = el("button", [texts().copy], { type: "button", class: "copy-code", "aria-label": texts().copyCode });
  const source = el("pre", [language === "" ? code : { ...code, language }], { tabindex: "0", dir: "ltr" });
  if (language.toLowerCase() !== "mermaid") return el("div", [el("div", [name, copy], { class: "code-head" }), source], { class: "code" });
  // The elements for the drawing exist from the first line on, so that none is replaced when the
  // block is complete.
  const [tools, drawing] = [own("span", "diagram-tools"), own("div", "diagram")];
  return el("div", [el("div", [name, tools, copy], { class: "code-head" }), drawing, source], { class: "code", ...(isClosed(token.raw) ? { "data-diagram": "" } : {}) });
}

function own(tag: Tag, name: string): El {
  return { ...el(tag, [], { class: name }), own: true };
}

/** Whether a block of code has its closing fence. An unfinished block and an indented one have
    none. */
function isClosed(raw: string): boolean {
  const [first = "", ...others] = raw.trimEnd().split("\n");
  const marks = /^ {0,3}(`{3,}|~{3,})/.exec(first)?.[1];
  const last = /^ {0,3}(`{3,}|~{3,})$/.exec(others.at(-1) ?? "")?.[1];
  return marks !== undefined && last !== undefined && last.startsWith(marks);
}

function plain(text: string): string {
  return decodeEntities(text);
}

const ENTITIES: Record<string, string> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—", ndash: "–",
  lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", bull: "•", middot: "·", times: "×", divide: "÷", plusmn: "±",
  deg: "°", micro: "µ", para: "¶", sect: "§", euro: "€", pound: "£", yen: "¥", cent: "¢", frac12: "½", larr: "←", rarr: "→", uarr: "↑",
  darr: "↓", harr: "↔", le: "≤", ge: "≥", ne: "≠", asymp: "≈", infin: "∞", alpha: "α", beta: "β", gamma: "γ", delta: "δ", pi: "π",
  sigma: "σ", omega: "ω", lambda: "λ", mu: "μ", theta: "θ", phi: "φ", psi: "ψ", sum: "∑", radic: "√",
};

/** Replaces the common character references of Markdown by their characters. The result is text. */
export function decodeEntities(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]{1,30}));/g, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return ENTITIES[name] ?? whole;
    const code = decimal !== undefined ? Number(decimal) : parseInt(hex ?? "", 16);
    return code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? "\ufffd" : String.fromCodePoint(code);
  });
}
