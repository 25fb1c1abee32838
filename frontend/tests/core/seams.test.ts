import { describe, expect, it } from "vitest";
import { Notices } from "../../src/core/seams";
import { MarkdownTree, type Node } from "../../src/core/tree";

const TEXT = "# Head\n\nOne **bold** and *soft* word, `code` too.\n\n- first\n- second with [a link](https://example.org/)\n\n```python\nprint(1)\n```\n\n|a|b|\n|-|-|\n|c|d|\n\nThe end &amp; more.";

function plain(nodes: readonly Node[]): string {
  return nodes.map((node) => (typeof node === "string" ? node : plain(node.children))).join("");
}

function tags(nodes: readonly Node[]): string[] {
  return nodes.flatMap((node) => (typeof node === "string" ? [] : [node.tag, ...tags(node.children)]));
}

function draw(text: string, at: readonly number[], running = false): Node[] {
  const tree = new MarkdownTree().render(text, running);
  return [...new Notices().insertInto(tree, text, at.map((place, number) => ({ at: place, words: `<${number}>` })))];
}

describe("a notice", () => {
  it("anywhere in a text changes nothing of it, and stands there once", () => {
    const without = new MarkdownTree().render(TEXT, false);
    for (let at = 0; at <= TEXT.length; at += 1) {
      const tree = draw(TEXT, [at]);
      expect(plain(tree).split("<0>")).toHaveLength(2);
      expect(plain(tree).replace("<0>", "")).toBe(plain(without));
      const counts = tags(tree);
      counts.splice(counts.findIndex((tag, place) => tag !== tags(without)[place]), 1);
      expect(counts).toEqual(tags(without));
    }
  });

  it.each([
    ["One **bo|ld** word.", "One bo<0>ld word."],
    ["One **|bold** word.", "One <0>bold word."],
    // Half of a link text is not a link yet, so its bracket was drawn.
    ["One [li|nk](https://example.org/) word.", "One lin<0>k word."],
    ["One [link](https://exam|ple.org/) word.", "One link<0> word."],
    ["- one\n- tw|o\n- three", "onetw<0>othree"],
    ["- one\n|- two", "one<0>two"],
    ["Para one.\n\n|Para two.", "Para one.<0>Para two."],
    ["```\nlet a|;\n```", "codeCopylet a<0>;"],
    ["```\n|let a;\n```", "codeCopy<0>let a;"],
    ["All of it.|", "All of it.<0>"],
  ])("in %j stands where the text before it ends", (marked, expected) => {
    expect(plain(draw(marked.replace("|", ""), [marked.indexOf("|")]))).toBe(expected);
  });

  it("has others behind it", () => {
    expect(plain(draw("One two three.", [4, 8]))).toBe("One <0>two <1>three.");
    expect(plain(draw("One two three.", [4, 4]))).toContain("<1>");
  });

  it("keeps its place while the text behind it grows", () => {
    const text = "One *two three* four.";
    for (let length = 8; length <= text.length; length += 1) expect(plain(draw(text.slice(0, length), [8], true)).startsWith("One two<0>")).toBe(true);
  });

  it("is not there without a seam, and then the tree is the same", () => {
    const tree = new MarkdownTree().render(TEXT, false);
    expect(new Notices().insertInto(tree, TEXT, [])).toBe(tree);
  });
});
