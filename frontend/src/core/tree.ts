/* Markdown as a tree of plain objects. No HTML text is ever made or parsed: markup that the model wrote stays text, and what
   can be drawn at all is the closed set of tags and attributes below. */

import { createLowlight } from "lowlight";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { Marked, type Token, type Tokens, type TokensList } from "marked";
import { drawable } from "./partialMarkdown";

export type Tag =
  | "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "li" | "blockquote" | "hr" | "br"
  | "strong" | "em" | "del" | "code" | "pre" | "a" | "span" | "div" | "button" | "input"
  | "table" | "thead" | "tbody" | "tr" | "th" | "td";

export type Attribute = "class" | "href" | "title" | "start" | "type" | "disabled" | "checked" | "rel" | "target" | "aria-label" | "aria-level" | "tabindex" | "role";

export interface El {
  readonly tag: Tag;
  readonly attributes: Readonly<Partial<Record<Attribute, string>>>;
  readonly children: readonly Node[];
}
export type Node = El | string;

const highlighter = createLowlight({ bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml });
/** Colouring longer code on every frame costs more than the colours are worth. */
const COLOURED_CHARACTERS = 20_000;

// Line breaks of a model's answer are meant.
const marked = new Marked({ gfm: true, breaks: true });

function el(tag: Tag, children: readonly Node[], attributes: El["attributes"] = {}): El {
  return { tag, attributes, children };
}

/** Draws one answer again and again while it grows; blocks that did not change stay the same objects. */
export class MarkdownTree {
  private blocks = new Map<string, Node[]>();

  render(text: string, running: boolean): Node[] {
    const tokens = parse(running ? drawable(text) : text);
    if (tokens === null) return [el("p", [text], { class: "unparsed" })];
    // A definition that comes late turns earlier text into links, so blocks are only reused under the same definitions.
    const links = Object.keys(tokens.links).length;
    const next = new Map<string, Node[]>();
    const out: Node[] = [];
    for (const token of tokens) {
      const key = `${links} ${token.raw}`;
      const nodes = this.blocks.get(key) ?? block(token);
      next.set(key, nodes);
      out.push(...nodes);
    }
    this.blocks = next;
    return out;
  }
}

// A text that the parser cannot take (nested thousands deep) is still a text, and is shown as it is.
function parse(text: string): TokensList | null {
  try {
    return marked.lexer(text);
  } catch {
    return null;
  }
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
      return [el("p", inline(token.tokens))];
    case "text":
      return token.tokens === undefined ? [plain((token as Tokens.Text).text)] : inline(token.tokens);
    case "code":
      return [codeBlock(token as Tokens.Code)];
    case "blockquote":
      return [el("blockquote", blocks(token.tokens))];
    case "list":
      return [list(token as Tokens.List)];
    case "table":
      return [table(token as Tokens.Table)];
    case "hr":
      return [el("hr", [])];
    case "checkbox":
      return [checkbox((token as Tokens.Checkbox).checked)];
    case "html":
      return [el("p", [(token as Tokens.HTML).text.trimEnd()])];
    default:
      return [el("p", inline([token]))];
  }
}

// It looks as the model meant it, and lies below the page's own heading over the answer (of level 2).
function heading(token: Tokens.Heading): El {
  const depth = Math.min(6, Math.max(1, token.depth));
  return el(`h${depth}` as Tag, inline(token.tokens), { "aria-level": String(Math.min(6, depth + 2)) });
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
      return el("code", [(token as Tokens.Codespan).text]);
    case "br":
      return el("br", []);
    case "link":
      return link(token as Tokens.Link);
    case "image":
      return picture(token as Tokens.Image);
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

// A picture would be fetched from wherever the text says, and tell that place that it was read: it is a link instead.
function picture(token: Tokens.Image): Node {
  const href = safeAddress(token.href);
  const words = decodeEntities(token.text) || "image";
  return href === null ? words : el("a", [words], { href, rel: "noopener noreferrer nofollow", target: "_blank", class: "picture" });
}

/** Only addresses that a reader can follow without running anything. */
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
  return el(token.ordered ? "ol" : "ul", items, start);
}

function listItem(item: Tokens.ListItem): El {
  const box = item.task && !item.tokens.some((token) => token.type === "checkbox" || firstIsBox(token));
  const content = [...(box ? [checkbox(item.checked ?? false)] : []), ...blocks(item.tokens)];
  return el("li", content, item.task ? { class: "task" } : {});
}

function firstIsBox(token: Token): boolean {
  return "tokens" in token && token.tokens?.[0]?.type === "checkbox";
}

function checkbox(checked: boolean): El {
  return el("input", [], { type: "checkbox", disabled: "", "aria-label": checked ? "done" : "not done", ...(checked ? { checked: "" } : {}) });
}

function table(token: Tokens.Table): El {
  const cells = (row: Tokens.TableCell[], tag: "th" | "td"): El[] =>
    row.map((cell) => el(tag, inline(cell.tokens), cell.align === null ? {} : { class: `align-${cell.align}` }));
  const grid = el("table", [
    el("thead", [el("tr", cells(token.header, "th"))]),
    el("tbody", token.rows.map((row) => el("tr", cells(row, "td")))),
  ]);
  return el("div", [grid], { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
}

function codeBlock(token: Tokens.Code): El {
  const language = (token.lang ?? "").trim().split(/[\s{]/)[0] ?? "";
  return el("div", [
    el("div", [el("span", [language === "" ? "code" : language]), el("button", ["Copy"], { type: "button", class: "copy-code", "aria-label": "Copy code" })], { class: "code-head" }),
    el("pre", [el("code", coloured(token.text, language))], { tabindex: "0" }),
  ], { class: "code" });
}

/** Code in the colours of its language, as far as that is known. */
export function coloured(code: string, language: string): readonly Node[] {
  if (language === "" || code.length > COLOURED_CHARACTERS || !highlighter.registered(language.toLowerCase())) return [code];
  return highlighter.highlight(language.toLowerCase(), code).children.flatMap(fromHighlight);
}

type HighlightNode = ReturnType<typeof highlighter.highlight>["children"][number];

function fromHighlight(node: HighlightNode): Node[] {
  if (node.type === "text") return [node.value];
  if (node.type !== "element") return [];
  const names = node.properties["className"];
  const children = node.children.flatMap((child) => fromHighlight(child as HighlightNode));
  return [el("span", children, Array.isArray(names) ? { class: names.join(" ") } : {})];
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

/** Character references are Markdown's, so the common ones become their characters; the result is text all the same. */
export function decodeEntities(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z][A-Za-z0-9]{1,30}));/g, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return ENTITIES[name] ?? whole;
    const code = decimal !== undefined ? Number(decimal) : parseInt(hex ?? "", 16);
    return code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? "\ufffd" : String.fromCodePoint(code);
  });
}
