/* Code in the colours of its language. The languages are half of the page's script, so this module
   is loaded when an answer first has code. */

import { createLowlight } from "lowlight";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { el, type Node } from "./nodes";

const highlighter = createLowlight({ bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml });
/** Colouring longer code on every frame costs more than the colours are worth. */
const MAX_CHARACTERS = 20_000;

/** Code in the colours of its language; without colours where the language is not known. */
export function highlight(code: string, language: string): readonly Node[] {
  if (language === "" || code.length > MAX_CHARACTERS || !highlighter.registered(language.toLowerCase())) return [code];
  return highlighter.highlight(language.toLowerCase(), code).children.flatMap(fromHighlight);
}

type HighlightNode = ReturnType<typeof highlighter.highlight>["children"][number];

function fromHighlight(node: HighlightNode): Node[] {
  if (node.type === "text") return [node.value];
  if (node.type !== "element") return [];
  const names = node.properties["className"];
  const children = node.children.flatMap((child) => fromHighlight(child as HighlightNode));
  return [el("span", children, Array.isArray(names) ? { class: names.join(" ") } : {})];
}
