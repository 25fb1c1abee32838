import { describe, expect, it } from "vitest";
import { drawable } from "../../src/core/partialMarkdown";
import { MarkdownTree, type El, type Node } from "../../src/core/tree";

function text(nodes: readonly Node[]): string {
  return nodes.map((node) => (typeof node === "string" ? node : text(node.children))).join("");
}

function tags(nodes: readonly Node[]): string[] {
  return nodes.flatMap((node) => (typeof node === "string" ? [] : [node.tag, ...tags(node.children)]));
}

function draw(source: string, running: boolean): Node[] {
  return new MarkdownTree().render(source, running);
}

describe("a running answer", () => {
  it.each([
    ["Some **bo", "Some **bo**"],
    ["Some **", "Some "],
    ["Some **bold*", "Some **bold**"],
    ["Some *it", "Some *it*"],
    ["`co", "`co`"],
    ["a `", "a "],
    ["``a `b", "``a `b``"],
    ["~~ol", "~~ol~~"],
    ["see [the docs](https://exa", "see the docs"],
    ["2 * 3 = 6", "2 * 3 = 6"],
    ["snake_case_name", "snake_case_name"],
    ["**done** and", "**done** and"],
    ["one **a\n\ntwo", "one **a\n\ntwo"],
    ["escaped \\*", "escaped \\*"],
  ])("closes what is open in its last words: %j", (source, expected) => expect(drawable(source)).toBe(expected));

  it.each(["Items:\n-", "Items:\n- ", "Items:\n1", "Items:\n1.", "Items:\n##", "Items:\n```", "Items:\n```pyth", "Items:\n===", "Items:\n>", "Items:\n- [", "Items:\n- [x"])(
    "holds back a marker until it is known what it marks: %j",
    (source) => expect(tags(draw(source, true))).toEqual(["p"]),
  );

  it.each(["| a | b", "| a | b |\n", "| a | b |\n|--", "| a | b |\n|--|--|"])("does not draw half a table head as text: %j", (source) => {
    expect(text(draw(`Before.\n\n${source}`, true))).toBe("Before.");
  });

  it("draws a table from its second line on", () => {
    expect(tags(draw("| a | b |\n|--|--|\n| 1", true))).toContain("table");
  });

  it("draws an open fence as code from its first line, and not its half-written end", () => {
    for (const [source, code] of [["```py\nx = 1", "x = 1"], ["```py\nx = 1\n``", "x = 1"], ["```py\nx = 1\n```", "x = 1"], ["~~~\na\n~", "a"]] as const) {
      const [block] = draw(source, true) as [El];
      expect(block.attributes.class).toBe("code");
      expect(text(block.children[1] === undefined ? [] : [block.children[1]])).toBe(code);
    }
  });

  it("is never drawn with text that its end does not have, at any of its moments", () => {
    const source = "Intro with **bold**, *it* and `code`.\n\n## Head\n\n1. one\n2. two\n   - in\n\n```python\nfor i in range(3):\n    print(i)\n```\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\nSee [docs](https://example.org). Done ~~not~~.\n";
    const letters = (value: string): string => value.replace(/[\s|]/g, "");
    const whole = letters(text(draw(source, false)));
    const tree = new MarkdownTree();
    let longest = 0;
    for (let end = 0; end <= source.length; end += 1) {
      const letterCount = letters(text(tree.render(source.slice(0, end), true)));
      expect(whole.startsWith(letterCount) || whole.startsWith(letterCount.replace(/[[\]()!`]+\S*$/, ""))).toBe(true);
      longest = Math.max(longest, letterCount.length);
    }
    expect(longest).toBe(whole.length);
  });

  it("once ended is drawn as it is", () => {
    expect(text(draw("Some **bo", false))).toBe("Some **bo");
    expect(text(draw("- ", false))).toBe("");
    expect(text(draw("| a | b", false))).toBe("| a | b");
  });
});
