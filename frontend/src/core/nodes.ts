/* What an answer is drawn from: plain objects, of a closed set of tags and attributes. */

export type Tag =
  | "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "li" | "blockquote" | "hr" | "br"
  | "strong" | "em" | "del" | "code" | "pre" | "a" | "span" | "div" | "button" | "input" | "sup"
  | "table" | "thead" | "tbody" | "tr" | "th" | "td"
  | (typeof MATH_TAGS)[number]
  | (typeof SVG_TAGS)[number];

/** What formulas are made of, beside spans. */
export const MATH_TAGS = [
  "math", "semantics", "annotation", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mstyle", "mpadded", "mphantom", "menclose",
  "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mlabeledtr",
] as const;
export const SVG_TAGS = ["svg", "path", "line"] as const;

export type Attribute =
  | "class" | "href" | "title" | "start" | "type" | "disabled" | "checked" | "rel" | "target" | "aria-label" | "aria-level" | "tabindex" | "role"
  | "dir" | "value" | "data-note" | "data-diagram"
  | (typeof FORMULA_ATTRIBUTES)[number];

export const FORMULA_ATTRIBUTES = [
  "aria-hidden", "display", "encoding", "mathvariant", "mathsize", "mathcolor", "mathbackground", "displaystyle", "scriptlevel",
  "stretchy", "symmetric", "fence", "separator", "form", "lspace", "rspace", "minsize", "maxsize", "largeop", "movablelimits",
  "accent", "accentunder", "linethickness", "notation", "width", "height", "depth", "voffset", "rowspacing", "columnspacing",
  "columnalign", "columnlines", "rowlines", "side", "viewBox", "preserveAspectRatio", "d", "x1", "x2", "y1", "y2", "stroke-width",
] as const;

export interface El {
  readonly tag: Tag;
  readonly attributes: Readonly<Partial<Record<Attribute, string>>>;
  readonly children: readonly Node[];
  /** Lengths, colours and borders of a part of a formula, by the names of the CSSOM. */
  readonly style?: Readonly<Record<string, string>>;
  /** A formula: it counts for so many characters of the text, however it is drawn. */
  readonly counts?: number;
  /** The footnote that it refers to, or whose text it is. */
  readonly note?: string;
  /** Code: the language that the model named. */
  readonly language?: string;
  /** What is in it belongs to the view: the patcher makes the element and leaves its content alone. */
  readonly own?: true;
}
export type Node = El | string;

export function el(tag: Tag, children: readonly Node[], attributes: El["attributes"] = {}): El {
  return { tag, attributes, children };
}
