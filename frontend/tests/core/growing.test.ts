/* A growing text is parsed from the end of its last finished block: the result must equal that of
   the whole text. */

import { Lexer } from "marked";
import { afterEach, describe, expect, it, vi } from "vitest";
import { MarkdownTree, type Node } from "../../src/core/tree";
import { text } from "./trees";

const PIECES = [
  "# Head",
  "Some **bold** text\nover two lines.",
  "Head\n---",
  "- one\n- two",
  "- loose\n\n- items\n\n  with more",
  "1. a\n\n2. b",
  "2",
  "* other",
  "  indented",
  "      deep",
  "> quoted\ngoes on",
  "> - a\n>\n> b",
  "```py\nx = 1\n\ny = 2\n```",
  "~~~\nopen\n\nfence",
  "- ```\n  code\n\nafter",
  "| a | b |\n|---|---|\n| $|x|$ | 2 |",
  "<div>\n\ntext\n\n</div>",
  "<pre>\n\na\n</pre>",
  "<!-- a\n\nb -->",
  "---",
  "***",
  "a $x_1$ b \\(y\\) c",
  "\\[\na\n\nb\n\\]",
  "\\[ open",
  "$$\nx\n$$",
  "text[^1] and[^2]",
  "[^1]: note\n\n    more of it",
  "[^2]: other",
  "[ref] and [other]",
  "[ref]: https://example.org/ \"t\"",
  "[other]:\nhttps://example.org/2",
  "`code` ⸨0⸩",
  "مرحبا",
  "",
];

// The same for every run.
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 4_294_967_296;
    return state / 4_294_967_296;
  };
}

function mixed(seed: number): string {
  const next = random(seed);
  return Array.from({ length: 9 }, () => `${PIECES[Math.floor(next() * PIECES.length)]}${["\n\n", "\n\n", "\n\n", "\n", "\n\n\n", "\n \n"][Math.floor(next() * 6)]}`).join("");
}

const TEXT = PIECES.filter((piece) => !/open/.test(piece)).join("\n\n");

describe("a growing text", () => {
  it("that ends at any place looks like the same text parsed whole", () => {
    const tree = new MarkdownTree();
    for (let end = 1; end <= TEXT.length; end += 1) {
      const source = TEXT.slice(0, end);
      const nodes = tree.render(source, true);
      if (end % 3 === 0) expect(nodes).toEqual(new MarkdownTree().render(source, true));
      if (end % 5 === 0) expect(tree.render(source, false)).toEqual(new MarkdownTree().render(source, false));
    }
  });

  // A text of complete lines without an open mark has the same tree in both ways.
  it.each(Array.from({ length: 60 }, (_, seed) => seed))("of mixed blocks too (%i)", (seed) => {
    const source = `${mixed(seed)}\n\nThe end.`;
    const next = random(seed + 1000);
    const tree = new MarkdownTree();
    for (let end = 1; end < source.length; end += 1 + Math.floor(next() * 7)) tree.render(source.slice(0, end), true);
    const nodes = tree.render(source, true);
    const whole = new MarkdownTree();
    vi.spyOn(whole as unknown as { finish(): void }, "finish").mockReturnValue(undefined);
    expect(nodes).toEqual(whole.render(source, true));
    expect(tree.render(source, false)).toEqual(new MarkdownTree().render(source, false));
  });

  it("that is replaced by another one is forgotten", () => {
    const tree = new MarkdownTree();
    tree.render("One [a].\n\nTwo.\n\nThree.\n\n[a]: https://example.org/\n\nFour.", true);
    expect(tree.render("Other [a].\n\nText.\n\nHere.", true)).toEqual(new MarkdownTree().render("Other [a].\n\nText.\n\nHere.", true));
  });
});

describe("what a token costs", () => {
  afterEach(() => vi.restoreAllMocks());

  it("does not grow with the length of the answer", () => {
    const tree = new MarkdownTree();
    const block = "A paragraph with **bold** text and $x$.\n\n- a list\n- of two\n\n";
    const lexed = vi.spyOn(Lexer.prototype, "lex");
    const cost = (source: string): number => {
      lexed.mockClear();
      tree.render(source, true);
      return lexed.mock.calls.reduce((sum, [text]) => sum + text.length, 0);
    };
    let source = "";
    const costs: number[] = [];
    for (let count = 0; count < 60; count += 1) {
      for (let at = 0; at < block.length; at += 4) costs.push(cost(source + block.slice(0, at + 4)));
      source += block;
    }
    expect(Math.max(...costs)).toBeLessThan(4 * block.length);
    expect(text(tree.render(source, true))).toBe(text(new MarkdownTree().render(source, false)));
  });

  it("leaves finished blocks as the same objects, and so does the end", () => {
    const source = Array.from({ length: 20 }, (_, number) => `Paragraph ${number}[^1] with $x$.`).join("\n\n");
    const tree = new MarkdownTree();
    let before: readonly Node[] = [];
    for (let end = 1; end <= source.length; end += 3) {
      const nodes = tree.render(source.slice(0, end), true);
      for (let place = 0; place < before.length - 1; place += 1) expect(nodes[place]).toBe(before[place]);
      before = nodes;
    }
    tree.render(source, true);
    const last = tree.render(`${source}\n\nNo notes.`, true);
    const plain = Array.from({ length: 5 }, (_, number) => `Paragraph ${number}.`).join("\n\n");
    const other = new MarkdownTree();
    const running = other.render(plain, true);
    expect(other.render(plain, false).every((node, place) => node === running[place])).toBe(true);
    expect(last).toHaveLength(21);
  });
});
