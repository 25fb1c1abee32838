/* Notices in drawn Markdown. A notice within the text, or between two texts, would break a list, a
   fence or an emphasis that spans it. So the whole text is drawn first, and the notice is then
   inserted into the tree: after as many characters as the text before the notice has when it is
   drawn alone. Half of a link also draws its bracket, so there the notice is one character later. */

import { MarkdownTree, type El, type Node } from "./tree";

export interface Notice {
  /** Characters of the source before it. */
  readonly at: number;
  readonly words: string;
}

export class Notices {
  /** The sources before the notices, and the number of characters that each draws. Each is drawn
      once. */
  private sources: { source: string; characters: number }[] = [];

  /** `tree` with the notices in it; unchanged where there are none. */
  insertInto(tree: readonly Node[], text: string, notices: readonly Notice[]): readonly Node[] {
    this.sources = notices.map(({ at }, place) => {
      const source = text.slice(0, at);
      const entry = this.sources[place];
      return entry?.source === source ? entry : { source, characters: length(new MarkdownTree().render(source, true)) };
    });
    return notices.reduce<readonly Node[]>((nodes, { words }, place) => {
      const notice: El = { tag: "span", attributes: { class: "seam", role: "note" }, children: [words] };
      const { out, remaining } = insert(nodes, this.sources[place]?.characters ?? 0, notice);
      return remaining === null ? out : [...out, notice];
    }, tree);
  }
}

// Elements that the page adds to the text: the head of a block of code, other notices, and
// footnotes.
function isAdded({ attributes }: El): boolean {
  return attributes.class === "code-head" || attributes.class === "seam" || attributes.class === "notes";
}

function length(nodes: readonly Node[]): number {
  return nodes.reduce((sum, node) => sum + (typeof node === "string" ? node.length : isAdded(node) ? 0 : (node.counts ?? length(node.children))), 0);
}

/** `remaining`: the characters before the notice; null after it is placed. */
function insert(nodes: readonly Node[], characters: number, notice: El): { out: Node[]; remaining: number | null } {
  const out: Node[] = [];
  let remaining: number | null = characters;
  for (const node of nodes) {
    if (remaining === null || (typeof node !== "string" && isAdded(node))) out.push(node);
    else if (typeof node === "string") {
      if (node.length < remaining) {
        out.push(node);
        remaining -= node.length;
      } else {
        out.push(...[node.slice(0, remaining), notice, node.slice(remaining)].filter((piece) => piece !== ""));
        remaining = null;
      }
    } else if (node.counts !== undefined) {
      // A formula stays whole.
      if (node.counts < remaining) {
        out.push(node);
        remaining -= node.counts;
      } else {
        out.push(...(node.counts > remaining ? [notice, node] : [node, notice]));
        remaining = null;
      }
    } else {
      const inside = insert(node.children, remaining, notice);
      out.push(inside.remaining === null || inside.remaining !== remaining ? { ...node, children: inside.out } : node);
      remaining = inside.remaining;
    }
  }
  return { out, remaining };
}
