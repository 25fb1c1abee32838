import { describe, expect, it } from "vitest";
import { highlight } from "../../src/core/colours";
import { decodeEntities, direction, MarkdownTree, safeAddress, type El, type Node } from "../../src/core/tree";

function all(nodes: readonly Node[]): El[] {
  return nodes.flatMap((node) => (typeof node === "string" ? [] : [node, ...all(node.children)]));
}

function text(nodes: readonly Node[]): string {
  return nodes.map((node) => (typeof node === "string" ? node : text(node.children))).join("");
}

function draw(source: string): Node[] {
  return new MarkdownTree().render(source, false, null, highlight);
}

const ALLOWED = new Set(["class", "href", "title", "start", "type", "disabled", "checked", "rel", "target", "aria-label", "aria-level", "tabindex", "role", "dir", "value", "data-note", "data-diagram"]);

describe("markup in an answer is text", () => {
  it.each([
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "text <img src=x onerror=alert(1)> text",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>x</a>",
    "<!-- <script>alert(1)</script> -->",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
  ])("%s", (source) => {
    expect(text(draw(source)).trim()).toBe(source);
    for (const element of all(draw(source))) expect(["p", "br"]).toContain(element.tag);
  });

  it("also when it comes as character references", () => {
    expect(text(draw("&lt;script&gt;alert(1)&lt;/script&gt; &#60;b&#x3e; &amp;lt; &nosuch;"))).toBe("<script>alert(1)</script> <b> &lt; &nosuch;");
  });

  it("and in code, a language name included", () => {
    const [block] = draw("```<img/src=x/onerror=alert(1)>\n<b>&lt;</b>\n```") as [El];
    expect(text([block])).toContain("<b>&lt;</b>");
    expect(all([block]).map((element) => element.tag)).not.toContain("img");
  });

  it("and no attribute is ever drawn that could run or load something", () => {
    const source = '# h\n[a](https://e.org "t\\" onclick=alert(1)")\n![p](https://e.org/p.png)\n- [x] t\n\n|a|\n|:-:|\n|b|\n\n3. x\n\n[^1] $x$\n\n[^1]: n\n';
    for (const element of all(draw(source))) for (const name of Object.keys(element.attributes)) expect(ALLOWED).toContain(name);
    expect(all(draw(source)).map((element) => element.tag)).not.toContain("img");
  });
});

describe("a link leads only", () => {
  it.each(["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", "&#106;avascript:alert(1)", "data:text/html,<script>alert(1)</script>", "vbscript:x", "file:///etc/passwd", "blob:https://e.org/1", "relative/path", "//e.org", ""])(
    "not to %j",
    (address) => {
      expect(safeAddress(address)).toBeNull();
      expect(all(draw(`[x](<${address.replace("\n", "")}>)`)).filter((element) => element.attributes.href !== undefined)).toEqual([]);
    },
  );

  it("to the web and to mail, without telling where from", () => {
    const [link] = all(draw("[x](https://example.org/a?b=c&amp;d=e)")).filter((element) => element.tag === "a");
    expect(link?.attributes).toMatchObject({ href: "https://example.org/a?b=c&d=e", rel: "noopener noreferrer nofollow", target: "_blank" });
    expect(safeAddress("mailto:a@example.org")).toBe("mailto:a@example.org");
  });
});

describe("Markdown", () => {
  it("is drawn with its structure", () => {
    const elements = all(draw("# T\n\np **b** *i* ~~d~~ `c`\nline\n\n> q\n\n- a\n  1. b\n\n---\n\n|h|\n|--|\n|c|\n\n```python\nx = 1\n```")).map((element) => element.tag);
    for (const tag of ["h1", "p", "strong", "em", "del", "code", "br", "blockquote", "ul", "ol", "li", "hr", "table", "th", "td", "pre"]) expect(elements).toContain(tag);
  });

  it("has its headings below the page's own heading over the answer", () => {
    const levels = all(draw("# a\n\n## b\n\n###### c")).filter((element) => /^h\d$/.test(element.tag)).map((element) => [element.tag, element.attributes["aria-level"]]);
    expect(levels).toEqual([["h1", "4"], ["h2", "5"], ["h6", "6"]]);
  });

  it("says whether a task is done", () => {
    const boxes = all(draw("- [x] a\n- [ ] b")).filter((element) => element.tag === "input");
    expect(boxes.map((box) => box.attributes["aria-label"])).toEqual(["done", "not done"]);
  });

  it("colours known languages and leaves unknown ones plain", () => {
    expect(all(draw("```python\ndef f(): pass\n```")).some((element) => element.attributes.class?.startsWith("hljs-"))).toBe(true);
    const plain = draw("```klingon\nqapla'\n```");
    expect(all(plain).some((element) => element.attributes.class?.startsWith("hljs-"))).toBe(false);
    expect(text(plain)).toContain("qapla'");
  });

  it("colours code once what colours it has come, also in the finished part of a running answer", () => {
    const source = "- item\n\n  ```python\n  def f(): pass\n  ```\n\nText.\n\nMore `code` ";
    const tree = new MarkdownTree();
    const before = tree.render(source, true);
    expect(tree.waitsForColours).toBe(true);
    expect(all(before).some((element) => element.attributes.class?.startsWith("hljs-"))).toBe(false);
    const after = tree.render(source, true, null, highlight);
    expect(tree.waitsForColours).toBe(false);
    expect(all(after).some((element) => element.attributes.class?.startsWith("hljs-"))).toBe(true);
    expect(text(after)).toBe(text(before));
  });

  it("waits for no colours where no language is named", () => {
    const tree = new MarkdownTree();
    tree.render("```\nplain\n```\n\n`code`", false);
    expect(tree.waitsForColours).toBe(false);
  });

  it("keeps the same objects for blocks that did not change", () => {
    const tree = new MarkdownTree();
    const before = tree.render("# Head\n\nFirst.\n\nSec", true);
    const after = tree.render("# Head\n\nFirst.\n\nSecond", true);
    expect(after[0]).toBe(before[0]);
    expect(after[1]).toBe(before[1]);
    expect(after[2]).not.toBe(before[2]);
  });

  it("is drawn in bounded time whatever it says", () => {
    for (const source of ["[".repeat(5000), "*a ".repeat(5000), "> ".repeat(800) + "x", "`".repeat(8000), "- ".repeat(500), "|".repeat(5000), "&".repeat(20000), "![](".repeat(3000)]) {
      const started = performance.now();
      new MarkdownTree().render(source, true);
      expect(performance.now() - started).toBeLessThan(3000);
    }
  });
});

describe("text", () => {
  const ARABIC = "مرحبا";

  it("of every block reads from where its first letter says, and code from the left", () => {
    const source = `# ${ARABIC}\n\n${ARABIC} \`c\`\n\n- ${ARABIC}\n- b\n\n> q\n\n|a|\n|-|\n|b|\n\n\`\`\`\nc\n\`\`\`\n\n<b>`;
    const directions = Object.fromEntries(all(draw(source)).map(({ tag, attributes }) => [tag, attributes.dir]));
    expect(directions).toMatchObject({ h1: "auto", p: "auto", li: "auto", th: "auto", td: "auto", pre: "ltr" });
    expect(all(draw("one `c` two")).find(({ tag }) => tag === "code")?.attributes.dir).toBe("ltr");
  });

  it.each([
    [`- ${ARABIC}\n- b`, "ul", "rtl"],
    [`1. a\n2. ${ARABIC}`, "ol", "ltr"],
    [`- ${ARABIC}\n\n  ${ARABIC}`, "li", "rtl"],
    [`> \`code\` ${ARABIC}`, "blockquote", "rtl"],
    [`| 1 | ${ARABIC} |\n|--|--|`, "table", "rtl"],
    ["> 12", "blockquote", "auto"],
  ])("%j has its marks, its bar or its first column on that side", (source, tag, side) => {
    expect(all(draw(source)).find((element) => element.tag === tag)?.attributes.dir).toBe(side);
  });

  it("with items of both kinds has room for marks on both sides", () => {
    expect(all(draw(`- ${ARABIC}\n- b`))[0]?.attributes.class).toBe("mixed");
    expect(all(draw("- a\n- b"))[0]?.attributes.class).toBeUndefined();
  });

  it.each([["12 – (!)", null], ["a ב", "ltr"], ["12 ב a", "rtl"], ["\u{1e900}", "rtl"], ["日本", "ltr"]])("%j reads from %s", (words, side) => expect(direction([words])).toBe(side));
});

describe("character references", () => {
  it("that name no character become a mark, not an error", () => {
    expect(decodeEntities("&#0; &#xD800; &#1114112; &#x41;")).toBe("\ufffd \ufffd \ufffd A");
  });
});

describe("a diagram", () => {
  const FENCED = "```mermaid\nflowchart LR\n  A --> B\n```";
  const marked = (source: string, running = false): (string | undefined)[] =>
    all(new MarkdownTree().render(source, running))
      .filter((element) => element.attributes.class === "code")
      .map((element) => element.attributes["data-diagram"]);

  it("is a block of code with places for the drawing, its source in it", () => {
    const [block] = draw(FENCED) as [El];
    expect(all([block]).filter((element) => element.own).map((element) => element.attributes.class)).toEqual(["diagram-tools", "diagram"]);
    expect(text(block.children.slice(1))).toBe("flowchart LR\n  A --> B");
    expect(all(draw("```python\nx\n```")).some((element) => element.own)).toBe(false);
  });

  it.each([FENCED, "~~~~ Mermaid title=x\nA\n~~~~~", "- item\n\n  ```mermaid\n  A\n  ```\n", "> ```mermaid\n> A\n> ```", "````mermaid\n```\n````\n\nText"])("is whole with its last fence: %j", (source) => {
    expect(marked(source)).toEqual([""]);
    expect(marked(`${source}\n\nMore`, true)).toEqual([""]);
  });

  it.each(["```mermaid\nA --> B", "```mermaid", "````mermaid\nA\n```", "```mermaid\nA\n~~~", "- a\n\n  ```mermaid\n  A\n"])("is none before: %j", (source) => {
    expect(marked(source)).toEqual([undefined]);
  });

  it("is not whole while the answer runs within it", () => {
    for (let length = 0; length < FENCED.length; length += 1) expect(marked(FENCED.slice(0, length), true)).not.toContain("");
    expect(marked(`${FENCED}\n`, true)).toEqual([""]);
  });

  it("stays the same object while text grows behind it", () => {
    const tree = new MarkdownTree();
    const [first] = tree.render(`${FENCED}\n\nT`, true);
    for (const more of ["Text", "Text.\n\nMore", "Text.\n\nMore.\n\n- a\n- b\n\nEnd"]) expect(tree.render(`${FENCED}\n\n${more}`, true)[0]).toBe(first);
    expect(tree.render(`${FENCED}\n\nText.`, false)[0]).toBe(first);
  });
});
