import ts from "typescript";
import { describe, expect, it } from "vitest";

const SOURCES = new Map(Object.entries(import.meta.glob<string>("../src/**/*.ts", { query: "?raw", import: "default", eager: true })).map(([path, source]) => [path.replace("../src/", ""), source]));

/** From the top: a file may import from its own floor and from those below. Files of `src/` itself
    have no folder. */
const FLOORS = [["main.ts", "shared.ts"], ["admin/"], ["view/"], ["controller.ts", "library.ts", "conversationCache.ts", "turnReader.ts", "engineWatch.ts"], ["edge/"], ["shell/"], ["core/"]];

type Graph = ReadonlyMap<string, readonly string[]>;

/** The files that a source imports: also for types, and when a function runs. Packages and style
    sheets do not count. */
function importsOf(name: string, source: string): string[] {
  const specifiers = ts.preProcessFile(source, true, true).importedFiles.map(({ fileName }) => fileName);
  return specifiers.map((each) => `${new URL(each, `file:///${name}`).pathname.slice(1)}.ts`).filter((path) => SOURCES.has(path));
}

/** The circles that a walk through all files meets, each as a path that ends where it begins. */
function circles(graph: Graph): string[] {
  const paths: string[] = [];
  const finished = new Set<string>();
  const walk = (file: string, path: readonly string[]): void => {
    const start = path.indexOf(file);
    if (start !== -1) paths.push([...path.slice(start), file].join(" → "));
    if (start !== -1 || finished.has(file)) return;
    for (const next of graph.get(file) ?? []) walk(next, [...path, file]);
    finished.add(file);
  };
  for (const file of graph.keys()) walk(file, []);
  return paths;
}

function floor(file: string): number {
  return FLOORS.findIndex((parts) => parts.some((part) => (part.endsWith("/") ? file.startsWith(part) : file === part)));
}

/** The imports that lead to a higher floor. */
function upward(graph: Graph): string[] {
  return [...graph].flatMap(([file, targets]) => targets.filter((other) => floor(other) < floor(file)).map((other) => `${file} → ${other}`));
}

describe("imports", () => {
  const graph: Graph = new Map([...SOURCES].map(([name, source]) => [name, importsOf(name, source)]));
  const planted = (name: string, line: string): Graph => new Map([...graph, [name, importsOf(name, `${SOURCES.get(name)}\n${line}`)]]);

  it("form no circle", () => {
    expect(circles(graph)).toEqual([]);
  });

  it("lead to the same floor or to a lower one", () => {
    expect([...graph.keys()].filter((file) => floor(file) === -1)).toEqual([]);
    expect(upward(graph)).toEqual([]);
  });

  it("are read from every source", () => {
    expect(graph.get("core/words.ts")).toEqual(expect.arrayContaining(["core/words/en.ts", "core/words/de.ts", "core/words/texts.ts"]));
    expect(graph.get("view/lazyMarkdown.ts")).toContain("view/markdown.ts");
  });

  it.each([
    ["a value", 'import { words } from "../words";'],
    ["a type", 'import type { Texts } from "../words";'],
    ["a module that is loaded later", 'const words = () => import("../words");'],
    ["the type of a module", 'type Words = typeof import("../words");'],
    ["an export", 'export { words } from "../words";'],
  ])("are caught where %s closes a circle", (_, line) => {
    expect(circles(planted("core/words/de.ts", line))).toEqual(["core/words.ts → core/words/de.ts → core/words.ts"]);
  });

  it("are caught where one leads up", () => {
    expect(upward(planted("core/json.ts", 'import { h } from "../view/dom";'))).toEqual(["core/json.ts → view/dom.ts"]);
  });
});
