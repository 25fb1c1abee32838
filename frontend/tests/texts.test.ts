import ts from "typescript";
import { describe, expect, it } from "vitest";

const SOURCES = Object.entries(import.meta.glob<string>("../src/**/*.ts", { query: "?raw", import: "default", eager: true })).map(([path, source]) => ({ name: path.replace("../src/", ""), source }));
/** The tables, the admin page, the service worker, which shows nothing, and the file that is
    generated from the server's sources. */
const ELSEWHERE = /^(?:core\/words(?:\/|\.ts)|admin\/|shell\/|core\/closeCodes\.ts)/;
/** The name of the product, names of keys, of dragged data and of errors, and a text that only the
    model reads. */
const NO_TEXTS = new Set(["Tailrace", "Files", "Enter", "Esc", "Escape", "Tab", "This tool was not run. The user went on without it."]);

/** Whether a text begins like a sentence or a label: "New chat", "Copy", "Stopping…". `_`: a value
    in a template. */
function looksLikeText(text: string): boolean {
  return !NO_TEXTS.has(text) && (/^["“(]?\p{Lu}\p{Ll}*(?:['’]\p{Ll}+)?[,:;]? .*(?:\p{Ll}{2}|_)/u.test(text) || /^\p{Lu}\p{Ll}+[.…!?]?$/u.test(text) || /^_ \p{Ll}+ \p{Ll}+/u.test(text));
}

/** The texts in a source, each as "line: text". */
function textsIn(source: string): string[] {
  const file = ts.createSourceFile("a.ts", source, ts.ScriptTarget.ES2022, true);
  const texts: string[] = [];
  const visit = (node: ts.Node): void => {
    const text = ts.isStringLiteralLike(node) ? node.text : ts.isTemplateExpression(node) ? node.head.text + node.templateSpans.map(({ literal }) => `_${literal.text}`).join("") : null;
    if (text !== null && looksLikeText(text)) texts.push(`${file.getLineAndCharacterOfPosition(node.pos).line + 1}: ${text}`);
    ts.forEachChild(node, visit);
  };
  visit(file);
  return texts;
}

describe("texts", () => {
  const files = SOURCES.filter(({ name }) => !ELSEWHERE.test(name));

  it("are looked for in every source of the page", () => {
    expect(files.map(({ name }) => name)).toEqual(expect.arrayContaining(["main.ts", "controller.ts", "core/messages.ts", "view/app.ts", "view/turn.ts", "edge/api.ts"]));
  });

  it.each(files)("stand in the tables, and not in $name", ({ source }) => {
    expect(textsIn(source)).toEqual([]);
  });

  it("are found where they are written", () => {
    const source = 'h("p", { class: "icon-button menu", "aria-label": "Copy" }, "New chat", `Stay ${who}`, `${to} continues from here`, "M12 5v14M5 12h14", "Stopping…")';
    expect(textsIn(source)).toEqual(["1: Copy", "1: New chat", "1: Stay _", "1: _ continues from here", "1: Stopping…"]);
  });
});
