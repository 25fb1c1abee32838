/* Notices in drawn Markdown. The text is drawn as one, whatever stands between its halves: a notice that were part of the
   text, or between two texts, would break the list, the fence or the emphasis that goes across it. So it is put into the
   tree, behind as many characters as the text before it alone draws. Half of a link draws its bracket too, so there the
   notice stands a character later. */

import { MarkdownTree, type El, type Node } from "./tree";

export interface Notice {
  /** Characters of the source before it. */
  readonly at: number;
  readonly words: string;
}

export class Notices {
  /** The sources before the notices, and how many characters they draw: they are drawn once. */
  private before: { source: string; drawn: number }[] = [];

  /** `tree` with the notices in it; the same where there are none. */
  put(tree: readonly Node[], text: string, notices: readonly Notice[]): readonly Node[] {
    this.before = notices.map(({ at }, place) => {
      const source = text.slice(0, at);
      const known = this.before[place];
      return known?.source === source ? known : { source, drawn: length(new MarkdownTree().render(source, true)) };
    });
    return notices.reduce<readonly Node[]>((nodes, { words }, place) => {
      const notice: El = { tag: "span", attributes: { class: "seam", role: "note" }, children: [words] };
      const { out, left } = insert(nodes, this.before[place]?.drawn ?? 0, notice);
      return left === null ? out : [...out, notice];
    }, tree);
  }
}

// What the page itself adds to the text: the head of a block of code, and other notices.
function isAdded({ attributes }: El): boolean {
  return attributes.class === "code-head" || attributes.class === "seam" || attributes.class === "notes";
}

function length(nodes: readonly Node[]): number {
  return nodes.reduce((sum, node) => sum + (typeof node === "string" ? node.length : isAdded(node) ? 0 : (node.counts ?? length(node.children))), 0);
}

/** `left`: characters that are still to come before the notice; null once it is placed. */
function insert(nodes: readonly Node[], characters: number, notice: El): { out: Node[]; left: number | null } {
  const out: Node[] = [];
  let left: number | null = characters;
  for (const node of nodes) {
    if (left === null || (typeof node !== "string" && isAdded(node))) out.push(node);
    else if (typeof node === "string") {
      if (node.length < left) {
        out.push(node);
        left -= node.length;
      } else {
        out.push(...[node.slice(0, left), notice, node.slice(left)].filter((piece) => piece !== ""));
        left = null;
      }
    } else if (node.counts !== undefined) {
      // A formula stays whole.
      if (node.counts < left) {
        out.push(node);
        left -= node.counts;
      } else {
        out.push(...(node.counts > left ? [notice, node] : [node, notice]));
        left = null;
      }
    } else {
      const inside = insert(node.children, left, notice);
      out.push(inside.left === null || inside.left !== left ? { ...node, children: inside.out } : node);
      left = inside.left;
    }
  }
  return { out, left };
}
