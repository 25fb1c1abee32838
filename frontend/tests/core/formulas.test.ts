import { describe, expect, it } from "vitest";
import { restore, shelter, split } from "../../src/core/formulas";
import { Notices } from "../../src/core/seams";
import { MarkdownTree, type Node, type Typeset } from "../../src/core/tree";
import { all, classed, text } from "./trees";

const PLAIN: Typeset = (tex, display) => ({ nodes: [`${display ? "D" : "F"}(${tex})`] });

function draw(source: string, running = false): Node[] {
  return new MarkdownTree().render(source, running, PLAIN);
}

function formulas(source: string): string[] {
  return classed(draw(source), "math").map((one) => text([one]));
}

describe("a formula", () => {
  it.each([
    ["so \\(a^2 + b_1 * c_2\\) is", ["F(a^2 + b_1 * c_2)"]],
    ["\\[ x_1 * y_2 \\]", ["D( x_1 * y_2 )"]],
    ["$$ x $$", ["D( x )"]],
    ["see $$x$$ here", ["D(x)"]],
    ["$x_1$ and $y_2$", ["F(x_1)", "F(y_2)"]],
    ["the $n$th and the $k$s", ["F(n)", "F(k)"]],
    ["**bold $x$** and *a $y$*", ["F(x)", "F(y)"]],
    ["**Area:**$x$", ["F(x)"]],
    ["$\\text{cost: \\$5}$", ["F(\\text{cost: \\$5})"]],
    ["\\[\na\n=\nb\n\\]", ["D(\na\n=\nb\n)"]],
    ["Text\n\\[\na \\\\[4pt]\n- b\n\\]\nmore", ["D(\na \\\\[4pt]\n- b\n)"]],
    ["$$\na\n\nb\n$$", ["D(\na\n\nb\n)"]],
    ["> \\[\n> a\n> + b\n> \\]", ["D(\na\n+ b\n)"]],
    ["1. One\n\n   $$\n   x\n   $$\n2. Two", ["D(\n   x\n   )"]],
    ["- a\n\n      \\[ x \\]", ["D( x )"]],
    ["# On $E = mc^2$", ["F(E = mc^2)"]],
    ["| a | b |\n|---|---|\n| $|x|$ | \\(|y|\\) |", ["F(|x|)", "F(|y|)"]],
    ["[see $x$](https://example.org/)", ["F(x)"]],
    ["$2x + 3 = 7$", ["F(2x + 3 = 7)"]],
    ["$10 \\text{ cm}$", ["F(10 \\text{ cm})"]],
    ["日本$x$語", ["F(x)"]],
  ])("in %j is found", (source, expected) => expect(formulas(source)).toEqual(expected));

  it.each([
    "between $5 and $6",
    "$5 and $6 and 7$",
    "$5-$6 or US$7 or 8$",
    "from $5 to 10$.",
    "$HOME/bin:$PATH",
    "a $ b $ c",
    "$x $ and $ y$",
    "\\$x$ and $y\\$",
    "`$x$` and ``\\(y\\)``",
    "```\n$x$ \\(y\\)\n$$\nz\n$$\n```",
    "- ```\n  $x$\n  ```",
    "    $x$ is code",
    "<https://example.org/$a$>",
    "https://example.org/?a=$b$",
    "[x](<https://example.org/$a$>)",
    "\\(not closed",
    "\\(over\n\na paragraph\\)",
    "\\[citation needed here\\]",
    "echo $$$ and $$$",
    "costs $5 (five dollars), not 6$",
    "$\n$",
  ])("is not in %j", (source) => expect(formulas(source)).toEqual([]));

  it("is text as it was written, where it is none", () => {
    expect(text(draw("`$x$` between $5 and $6"))).toBe("$x$ between $5 and $6");
    expect(text(draw("```\n\\(a_1\\) ⸨0⸩\n```"))).toContain("\\(a_1\\) ⸨0⸩");
    expect(all(draw("[a](https://example.org/$b$) $c$"))[1]?.attributes.href).toBe("https://example.org/$b$");
    expect(text(draw("a ⸨0⸩ b $x$ ⸨9⸩"))).toBe("a ⸨0⸩ b F(x) ⸨9⸩");
  });

  it("on a line of its own has no line break beside it", () => {
    expect(all(draw("so\n\\[ x \\]\nholds")).map(({ tag }) => tag)).not.toContain("br");
  });

  it("that is drawn is copied as it was written", () => {
    expect(classed(draw("a \\(x\\) b"), "as-written").map(({ children }) => children)).toEqual([["\\(x\\)"]]);
  });

  it("that cannot be drawn is its source, and says why", () => {
    const [one] = classed(new MarkdownTree().render("a $\\frac$ b", false, () => ({ problem: "no argument." })), "math");
    expect(one?.attributes.title).toBe("This formula cannot be drawn: no argument.");
    expect(text([one as Node])).toBe("$\\frac$");
  });

  it("is its source until formulas can be drawn, and the same object after", () => {
    const tree = new MarkdownTree();
    expect(text(tree.render("a $x$ b", true))).toBe("a $x$ b");
    expect(tree.waitsForFormulas).toBe(true);
    const [first] = classed(tree.render("a $x$ b", true, PLAIN), "math");
    expect(text([first as Node])).toBe("F(x)");
    expect(classed(tree.render("a $x$ b and more", true, PLAIN), "math")[0]).toBe(first);
    expect(tree.waitsForFormulas).toBe(false);
  });

  it("keeps every character of the source", () => {
    for (const source of ["a \\(x\\) ⸨ b $y$ ```\n$$\n", "\\[\n\n x", "$$ \\\\ $$ ⸨1⸩", "\\", "\\\\(", "$", "`$`"]) {
      const { text: sheltered, originals } = shelter(source, false);
      expect(restore(sheltered, originals)).toBe(source);
      expect(split(sheltered, originals).map((one) => (typeof one === "string" ? one : one.source)).join("")).toBe(source);
    }
  });

  it("is found in bounded time whatever the text is", () => {
    for (const piece of ["\\(", "$", "$ a", "$$ ", "\\[\n", "$a", "`$", "> \\[ ", "⸨", "\\(a\\)", "$a$ "]) {
      const started = performance.now();
      shelter(piece.repeat(20_000), true);
      expect(performance.now() - started).toBeLessThan(3000);
    }
  });
});

describe("while it streams, a formula", () => {
  const SOURCE = "So \\(a_1 * b_2 * c\\) and $x_1 * y_2$ hold.\n\n\\[\n\\sum_{i=1}^n *x_i*\n\\]\n\n- item $$z_1$$\n- two\n\nThe end costs \\$5.\n";

  it("never shows as Markdown, and nothing that was shown is taken back", () => {
    const tree = new MarkdownTree();
    const whole = text(draw(SOURCE)).replace(/\s/g, "");
    for (let end = 0; end <= SOURCE.length; end += 1) {
      const nodes = tree.render(SOURCE.slice(0, end), true, PLAIN);
      expect(all(nodes).filter(({ tag }) => tag === "em" || tag === "strong")).toEqual([]);
      const visible = text(nodes.filter((node) => text([node]).startsWith("\\[") === false)).replace(/\s/g, "");
      expect(whole.startsWith(visible)).toBe(true);
    }
  });

  it.each([
    ["so \\(a_1 * b_2", "so"],
    ["so \\", "so"],
    ["so $x_1 * y", "so"],
    ["so $x$", "so"],
    ["so $x$ ", "so F(x)"],
    ["so $$x_1", "so"],
    ["it costs $5 and *mor", "it costs $5 and mor"],
    ["set $HOME to the path *bef", "set $HOME to the path bef"],
    ["open \\(a\n\n*b", "open (ab"],
  ])("%j is drawn as %j", (source, visible) => expect(text(draw(source, true)).trim()).toBe(visible));

  it("of several lines is shown as its source", () => {
    expect(text(draw("So:\n\n\\[\n*a* +", true))).toBe("So:\\[\n*a* +");
    expect(all(draw("So:\n\n\\[\n*a* +", true)).map(({ tag }) => tag)).not.toContain("em");
    // In a finished text it is not a formula.
    const tree = new MarkdownTree();
    tree.render("\\[ a *b* +", true, PLAIN);
    expect(all(tree.render("\\[ a *b* +", false, PLAIN)).map(({ tag }) => tag)).toContain("em");
  });
});

describe("a notice among formulas", () => {
  const SOURCE = "One $a_1$ two.\n\n\\[\nb\n\\]\n\nThree \\(c\\).";

  it("stands beside them, wherever the text was cut", () => {
    const whole = text(draw(SOURCE));
    for (let at = 0; at <= SOURCE.length; at += 1) {
      const tree = new Notices().insertInto(draw(SOURCE), SOURCE, [{ at, words: "<0>" }]);
      expect(text(tree).split("<0>")).toHaveLength(2);
      expect(text(tree).replace("<0>", "")).toBe(whole);
      expect(classed(tree, "math").map((one) => text([one]))).toEqual(["F(a_1)", "D(\nb\n)", "F(c)"]);
    }
  });

  it.each([
    [3, "One<0>"],
    [SOURCE.indexOf("_1"), "One <0>F(a_1)"],
    // A digit could still follow the dollar.
    [SOURCE.indexOf(" two"), "One <0>F(a_1) two"],
    [SOURCE.indexOf("two"), "One F(a_1) <0>two"],
  ])("at %i is where the text before it ends", (at, expected) => {
    expect(text(new Notices().insertInto(draw(SOURCE), SOURCE, [{ at, words: "<0>" }]))).toContain(expected);
  });
});
