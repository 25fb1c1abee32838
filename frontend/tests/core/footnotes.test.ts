import { describe, expect, it } from "vitest";
import { MarkdownTree, type Node } from "../../src/core/tree";
import { all, classed, text } from "./trees";

function draw(source: string, running = false): Node[] {
  return new MarkdownTree().render(source, running);
}

function notes(nodes: readonly Node[]): string[] {
  return all(classed(nodes, "notes")).filter(({ tag }) => tag === "li").map((item) => `${item.attributes.value}: ${text(item.children).replace("↩", "")}`);
}

describe("footnotes", () => {
  it("are numbered in the order of their references, and stand at the end", () => {
    const nodes = draw("One[^b] and two[^a], again[^b].\n\n[^a]: The *first* one.\n[^b]: The other.\n\nMore text.");
    expect(text(nodes)).toBe("One1 and two2, again1.More text.The other.↩The first one.↩");
    expect(notes(nodes)).toEqual(["1: The other.", "2: The first one."]);
    expect(classed(nodes, "to-note").map(({ attributes }) => [attributes["data-note"], attributes["aria-label"]])).toEqual([["1", "Footnote 1"], ["2", "Footnote 2"], ["1", "Footnote 1"]]);
    expect(classed(nodes, "from-note").map(({ attributes }) => attributes["data-note"])).toEqual(["1", "2"]);
    expect(all(nodes).at(-1)).toBeDefined();
  });

  it("have no ids and no addresses", () => {
    for (const { attributes } of all(draw("a[^1]\n\n[^1]: b"))) expect(Object.keys(attributes)).not.toEqual(expect.arrayContaining(["id"]));
    expect(all(draw("a[^1]\n\n[^1]: b")).map(({ tag }) => tag)).not.toContain("a");
  });

  it("may have several paragraphs, lists and code", () => {
    const nodes = draw("a[^1]\n\n[^1]: First\n    goes on.\n\n    - one\n    - two\n\n    ```\n    code\n    ```\n\nText.");
    const [section] = classed(nodes, "notes");
    expect(all([section as Node]).map(({ tag }) => tag)).toEqual(expect.arrayContaining(["p", "ul", "pre"]));
    expect(text(nodes.slice(0, -1))).toBe("a1Text.");
  });

  it("that nothing refers to are shown, and references to nothing are text", () => {
    const nodes = draw("a[^x] b\n\n[^1]: Lonely.");
    expect(text(nodes)).toBe("a[^x] bLonely.");
    expect(classed(nodes, "from-note")).toEqual([]);
  });

  it.each(["`[^1]`", "```\n[^1]\n```", "\\[^1]"])("are not in %s", (source) => {
    expect(classed(draw(`${source}\n\n[^1]: note`), "to-note")).toEqual([]);
  });

  it("are found beside formulas, lists and quotes", () => {
    const nodes = draw("- item[^1]\n\n> quoted[^2]\n\n| a[^3] |\n|---|\n\n[^1]: $x$\n[^2]: b\n[^3]: c");
    expect(classed(nodes, "to-note")).toHaveLength(3);
    expect(classed(nodes, "math")).toHaveLength(1);
  });

  it("while the text runs, are numbers from their first moment on", () => {
    const source = "One[^1] and two[^2].\n\nMore.\n\n[^1]: First.\n[^2]: Second.\n";
    const tree = new MarkdownTree();
    for (let end = 0; end <= source.length; end += 1) {
      const nodes = tree.render(source.slice(0, end), true);
      expect(text(nodes)).not.toMatch(/\[|\^|\]/);
      expect(text(nodes)).toBe(text(draw(source.slice(0, end), true)));
    }
    expect(notes(tree.render(source, true))).toEqual(["1: First.", "2: Second."]);
    expect(tree.render(source, true)).toEqual(draw(source));
  });

  it("are the same elements before and after their note has come, so nothing moves", () => {
    const [before] = classed(draw("# A heading[^1].", true), "note-ref");
    const [after] = classed(draw("# A heading[^1].\n\n[^1]: Its note.", true), "note-ref");
    const outline = (node: Node | undefined): unknown => (typeof node === "object" ? [node.tag, node.attributes.class, node.children.map(outline)] : node);
    expect(outline(before)).toEqual(outline(after));
    const [waiting, leads] = [before, after].map((node) => classed([node as Node], "to-note")[0]?.attributes);
    expect(waiting).toMatchObject({ disabled: "", "aria-label": "Footnote 1" });
    expect(leads).not.toHaveProperty("disabled");
  });
});
