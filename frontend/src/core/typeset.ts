/* Formulas by KaTeX, as nodes of this page. KaTeX itself would create HTML text or elements. This
   module converts KaTeX's tree and lets only the tags, attributes and styles below through. KaTeX
   is large, so this module is loaded at the first formula.

   The visible part is spans with KaTeX's fonts, so it looks alike in every browser. The part for
   assistive technology is MathML. */

import katex from "katex";
import { el, FORMULA_ATTRIBUTES, MATH_TAGS, SVG_TAGS, type Attribute, type El, type Node, type Tag } from "./nodes";
import type { Typeset } from "./tree";

/** A node of KaTeX's tree. Its members identify its kind. */
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
  /** For a space in MathML: its width in em, and a character of the same width; null where there is
      none. */
  readonly width?: number;
  readonly character?: string | null;
  toMarkup(): string;
}

// KaTeX's authors may change this part: a test compares the tree with KaTeX's HTML.
const { __renderToDomTree: treeOf } = katex as unknown as { __renderToDomTree(tex: string, options: Readonly<Record<string, unknown>>): KatexNode };

/** A longer formula is not drawn. */
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
/** Lengths, sums of lengths, and names or numbers of colours: no addresses. */
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
  // A fragment has no element.
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
  // KaTeX sets the width of some shapes in a style attribute, which the page's policy forbids.
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
