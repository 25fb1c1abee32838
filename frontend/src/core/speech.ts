/* An answer for reading aloud: sentences of plain text, without Markdown marks. */

import type { El, Node } from "./nodes";
import { MarkdownTree } from "./tree";
import { texts } from "./words";

const END = /[.!?…:;。！？]["'”’»)]*$/;

export function speech(markdown: string): string {
  return blocks(new MarkdownTree().render(markdown, false)).join(" ");
}

/** The sentences of the nodes. Each ends with a mark at which a voice pauses. */
function blocks(nodes: readonly Node[]): string[] {
  const sentences: string[] = [];
  let line: Node[] = [];
  const endLine = (): void => {
    sentences.push(...sentence(words(line)));
    line = [];
  };
  for (const node of nodes) {
    const inner = typeof node === "string" ? null : block(node);
    if (inner === null) line.push(node);
    else {
      endLine();
      sentences.push(...inner);
    }
  }
  endLine();
  return sentences;
}

/** The sentences of a block; null: the node is part of a line. */
function block(node: El): string[] | null {
  if (node.attributes.class === "code") return [texts().saysCode(codeLanguage(node), count(node))];
  switch (node.tag) {
    case "tr":
      return sentence(node.children.map((cell) => words([cell])).join(", "));
    case "ol":
      return node.children.flatMap((item, place) => withNumber(blocks([item]), Number(node.attributes.start ?? 1) + place));
    case "p": case "h1": case "h2": case "h3": case "h4": case "h5": case "h6": case "ul": case "li": case "blockquote": case "div":
    case "table": case "thead": case "tbody": case "hr":
      return blocks(node.children);
    default:
      return null;
  }
}

function withNumber([first, ...others]: readonly string[], place: number): string[] {
  return first === undefined ? [] : [`${place}. ${first}`, ...others];
}

function sentence(text: string): string[] {
  const line = text.replace(/\s+/g, " ").trim();
  return line === "" ? [] : [END.test(line) ? line : `${line}.`];
}

function words(nodes: readonly Node[]): string {
  return nodes.map((node) => (typeof node === "string" ? node : phrase(node))).join("");
}

function phrase(node: El): string {
  if (node.counts !== undefined) return bare(words(node.children));
  switch (node.tag) {
    case "br":
      return " ";
    case "input":
      return `${node.attributes["aria-label"] ?? ""}: `;
    case "sup":
    case "button":
      return "";
    default:
      return words(node.children);
  }
}

/** A formula without its delimiters. */
function bare(source: string): string {
  return source.replace(/^(?:\$\$|\$|\\\(|\\\[)/, "").replace(/(?:\$\$|\$|\\\)|\\\])$/, "");
}

function codeLanguage({ children }: El): string | null {
  const head = children[0];
  const name = typeof head === "object" && typeof head.children[0] === "object" ? words(head.children[0].children) : "";
  return name === "" || name === texts().codeWithoutLanguage ? null : name;
}

function count({ children }: El): number {
  return words(children.slice(1)).trimEnd().split("\n").length;
}
