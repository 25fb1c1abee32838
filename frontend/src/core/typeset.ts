/* Formulas by KaTeX, as a tree of our own. KaTeX would make HTML text, or elements by itself; here its tree is gone through,
   and only the tags, attributes and styles named below come out of it. It is a large library, so this module is loaded at
   the first formula only.

   What is seen is made of spans with KaTeX's fonts, so it looks alike in every browser; what is read aloud is MathML. */

import katex from "katex";
import { el, FORMULA_ATTRIBUTES, MATH_TAGS, SVG_TAGS, type Attribute, type El, type Node, type Tag } from "./nodes";
import type { Typeset } from "./tree";

/** A node of KaTeX's tree: which members it has says what it is. */
interface KatexNode {
  /** Of MathML. */
  readonly type?: string;
  readonly classes?: readonly string[];
  readonly style?: Readonly<Record<string, string>>;
  readonly attributes?: Readonly<Record<string, string>>;
  readonly children?: readonly KatexNode[];
  readonly text?: string;
  readonly italic?: number;
  /** Of a shape. */
  readonly pathName?: string;
  /** Of a space in MathML: in em, and the character that is as wide; null where none is. */
  readonly width?: number;
  readonly character?: string | null;
  toMarkup(): string;
}

// A part of KaTeX that its authors may change: a test holds the tree against what KaTeX writes as HTML.
const { __renderToDomTree: treeOf } = katex as unknown as { __renderToDomTree(tex: string, options: Readonly<Record<string, unknown>>): KatexNode };

/** Longer ones cost more than they are worth. */
const MOST_CHARACTERS = 4_000;
const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxSize: 30, maxExpand: 500, errorColor: "inherit", output: "htmlAndMathml" };

const TAGS: ReadonlySet<string> = new Set(MATH_TAGS);
const SHAPES: ReadonlySet<string> = new Set(SVG_TAGS);
const ATTRIBUTES: ReadonlySet<string> = new Set(FORMULA_ATTRIBUTES);
const STYLES: ReadonlySet<string> = new Set([
  "height", "width", "minWidth", "top", "bottom", "left", "verticalAlign", "position", "margin", "marginLeft", "marginRight", "marginTop",
  "paddingLeft", "color", "backgroundColor", "borderColor", "borderStyle", "borderWidth", "borderTopWidth", "borderRightWidth",
  "borderBottomWidth", "borderRightStyle", "textShadow",
]);
/** Lengths, sums of lengths, and names or numbers of colours: nothing that could be an address. */
const STYLE_VALUE = /^(?:calc\([\d.%a-z +-]+\)|[#\w.%\s-]+)$/;

export const typeset: Typeset = (tex, display) => {
  if (tex.length > MOST_CHARACTERS) return { problem: "it is too long." };
  try {
    return { nodes: convert([treeOf(tex, { ...OPTIONS, displayMode: display })]) };
  } catch (problem) {
    return { problem: problem instanceof katex.ParseError ? problem.message.replace(/^KaTeX parse error: /, "") : "it is nested too deep." };
  }
};

function convert(nodes: readonly KatexNode[]): Node[] {
  const out: Node[] = [];
  for (const node of nodes.flatMap(convertNode)) {
    const last = out.at(-1);
    if (typeof node === "string" && typeof last === "string") out[out.length - 1] = last + node;
    else out.push(node);
  }
  return out;
}

function convertNode(node: KatexNode): Node[] {
  const { type, text, classes, attributes, pathName, character } = node;
  if (character !== undefined) return [character === null ? el("mspace", [], { width: `${+(node.width ?? 0).toFixed(4)}em` }) : el("mtext", [character])];
  if (pathName !== undefined) return [shape("path", { d: /d="([^"]*)"/.exec(node.toMarkup())?.[1] ?? "" }, [])];
  if (type !== undefined) return [element(TAGS.has(type) ? (type as Tag) : "mrow", node)];
  if (text !== undefined) return [symbol(node, text)];
  if (classes === undefined) return [shape(node.children === undefined ? "line" : "svg", attributes ?? {}, convert(node.children ?? []))];
  // A fragment has no element of its own.
  return attributes === undefined ? convert(node.children ?? []) : [element("span", node)];
}

function symbol({ classes = [], style = {}, italic = 0 }: KatexNode, text: string): Node {
  const all = italic > 0 ? { marginRight: `${+italic.toFixed(4)}em`, ...style } : style;
  const names = classNames(classes);
  if (names === "" && Object.keys(all).length === 0) return text;
  return { tag: "span", attributes: names === "" ? {} : { class: names }, children: [text], ...styleOf(all) };
}

function element(tag: Tag, { classes = [], style = {}, attributes = {}, children = [] }: KatexNode): El {
  const names = classNames(classes);
  return { tag, attributes: { ...(names === "" ? {} : { class: names }), ...knownAttributes(attributes) }, children: convert(children), ...styleOf(style) };
}

function shape(tag: Tag, attributes: Readonly<Record<string, string>>, children: readonly Node[]): El {
  // KaTeX sets the width of some as an attribute of style, which the page's policy would not let through.
  const width = /^width:([\d.]+em)$/.exec(attributes["style"] ?? "")?.[1];
  return { tag: SHAPES.has(tag) ? tag : "span", attributes: knownAttributes(attributes), children, ...styleOf(width === undefined ? {} : { width }) };
}

function classNames(classes: readonly string[]): string {
  return classes.filter((name) => name !== "").join(" ");
}

function knownAttributes(attributes: Readonly<Record<string, string>>): El["attributes"] {
  return Object.fromEntries(Object.entries(attributes).filter(([name]) => ATTRIBUTES.has(name))) as Partial<Record<Attribute, string>>;
}

function styleOf(style: Readonly<Record<string, string>>): Pick<El, "style"> {
  const entries = Object.entries(style).filter(([name, value]) => STYLES.has(name) && STYLE_VALUE.test(value));
  return entries.length === 0 ? {} : { style: Object.fromEntries(entries) };
}
