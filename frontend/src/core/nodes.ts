/* The tree of a drawn answer: plain objects with a closed set of tags and attributes. */

export type Tag =
  | "p" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "ul" | "ol" | "li" | "blockquote" | "hr" | "br"
  | "strong" | "em" | "del" | "code" | "pre" | "a" | "span" | "div" | "button" | "input" | "sup"
  | "table" | "thead" | "tbody" | "tr" | "th" | "td"
  | (typeof MATH_TAGS)[number]
  | (typeof SVG_TAGS)[number];

/** The tags of formulas, in addition to spans. */
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
  /** Lengths, colours and borders of a part of a formula, by CSSOM name. */
  readonly style?: Readonly<Record<string, string>>;
  /** For a formula: the number of characters of its source. */
  readonly counts?: number;
  /** The label of the footnote that the element refers to, or whose text it is. */
  readonly note?: string;
  /** For code: the language that the model named. */
  readonly language?: string;
  /** The view owns the content: the patcher creates the element and does not change its content. */
  readonly own?: true;
}
export type Node = El | string;

export function el(tag: Tag, children: readonly Node[], attributes: El["attributes"] = {}): El {
  return { tag, attributes, children };
}
