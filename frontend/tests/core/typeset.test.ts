import katex from "katex";
import { describe, expect, it } from "vitest";
import { FORMULA_ATTRIBUTES, MATH_TAGS, SVG_TAGS, type Node } from "../../src/core/nodes";
import { typeset } from "../../src/core/typeset";
import { all, text } from "./trees";

const FORMULAS = [
  "a^2 + b_1", "\\sqrt{x}", "\\sqrt[3]{\\frac{1}{2}}", "\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}", "\\int_0^\\infty e^{-x^2}\\,dx", "\\left(\\frac{\\dfrac12}{3}\\right]",
  "\\begin{aligned} a &= b \\\\[4pt] &= c \\end{aligned}", "\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}", "\\begin{cases}1 & x>0\\\\0\\end{cases}", "\\begin{array}{c|c}a&b\\\\\\hline c&d\\end{array}",
  "\\boxed{42}", "\\cancel{x}", "\\mathbf{R}\\mathbb{R}\\mathcal{L}\\mathfrak{g}\\mathsf{x}\\mathtt{y}", "\\vec{v}\\hat{x}\\widehat{abc}\\overline{AB}\\overrightarrow{AB}", "\\underbrace{x+y}_{z}",
  "\\xrightarrow{abc}", "\\text{for all } x", "\\textcolor{#f00}{x}\\color{blue} y", "\\colorbox{yellow}{a}\\fcolorbox{red}{white}{b}", "\\tag{1} x", "f'(x) \\implies \\neg p", "\\lim_{x\\to0}\\limits", "\\text{中文 и кириллица}",
  "\\binom{n}{k}", "\\pmb{x}", "\\rule{1em}{2em}", "\\phase{-78^\\circ}", "\\angl{n}", "\\not=", "\\href{https://example.org}{x}", "\\includegraphics{a.png}", "\\htmlStyle{color:red}{x}",
];

const SPACES = { math: "http://www.w3.org/1998/Math/MathML", svg: "http://www.w3.org/2000/svg" } as const;

/** KaTeX's own HTML. */
function html(node: Node): string {
  if (typeof node === "string") return escaped(node);
  const { class: names, ...attributes } = node.attributes;
  const styles = Object.entries(node.style ?? {}).map(([name, value]) => `${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}:${value};`);
  const isMath = (MATH_TAGS as readonly string[]).includes(node.tag);
  const space = node.tag === "math" || node.tag === "svg" ? ` xmlns="${SPACES[node.tag]}"` : "";
  const others = Object.entries(attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");
  const kind = names === undefined ? "" : isMath ? ` class ="${names}"` : ` class="${names}"`;
  const style = styles.length === 0 ? "" : ` style="${escaped(styles.join(""))}"`;
  const begin = `<${node.tag}${space}${isMath ? others + kind : node.tag === "svg" ? kind + others + style : kind + style + others}`;
  return node.children.length === 0 && ["path", "line"].includes(node.tag) ? `${begin}/>` : `${begin}>${node.children.map(html).join("")}</${node.tag}>`;
}

function escaped(value: string): string {
  return value.replace(/[&><"']/g, (sign) => ({ "&": "&amp;", ">": "&gt;", "<": "&lt;", '"': "&quot;", "'": "&#x27;" })[sign] ?? sign);
}

function nodesOf(tex: string, display = true): readonly Node[] {
  const drawing = typeset(tex, display);
  if ("problem" in drawing) throw new Error(drawing.problem);
  return drawing.nodes;
}

describe("a formula", () => {
  it.each(FORMULAS)("%s is what KaTeX makes of it", (tex) => {
    const options = { displayMode: true, strict: "ignore", trust: false, maxSize: 30, errorColor: "inherit", throwOnError: true } as const;
    // The page's policy forbids the style attributes that KaTeX sets. One of them changes the look.
    const expected = katex
      .renderToString(tex, options)
      .replace(/(<m[a-z]+\b[^>]*?) style="[^"]*"/g, "$1")
      .replace(/(<svg\b[^>]*?)( style="width:[\d.]+em)"([^>]*)/g, "$1$3$2;\"");
    expect(nodesOf(tex).map(html).join("")).toBe(expected);
  });

  it("is made of nothing but the named tags, attributes and styles", () => {
    const tags = new Set<string>(["span", ...MATH_TAGS, ...SVG_TAGS]);
    const attributes = new Set<string>(["class", ...FORMULA_ATTRIBUTES]);
    for (const element of FORMULAS.flatMap((tex) => all(nodesOf(tex)))) {
      expect(tags).toContain(element.tag);
      for (const name of Object.keys(element.attributes)) expect(attributes).toContain(name);
      for (const value of Object.values(element.style ?? {})) expect(value).not.toMatch(/url|[;:"]/);
    }
  });

  it("can be read aloud, and has its source", () => {
    const [math] = all(nodesOf("x^2", false)).filter(({ tag }) => tag === "math");
    expect(all([math as Node]).map(({ tag }) => tag)).toContain("msup");
    expect(text(all([math as Node]).filter(({ tag }) => tag === "annotation"))).toBe("x^2");
  });

  it.each(["\\frac", "\\nosuch{x}", "{", "x^", "\\def\\a{\\a\\a}\\a", "{".repeat(20_000)])("that is wrong says why: %.20s", (tex) => {
    const drawing = typeset(tex, false);
    expect("problem" in drawing && drawing.problem).toMatch(/\w/);
    expect("problem" in drawing && drawing.problem).not.toContain("KaTeX");
  });
});
