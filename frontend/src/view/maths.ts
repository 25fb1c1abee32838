/* Brings what draws formulas, its fonts and its styles when there is a first formula. */

import type { Typeset } from "../core/tree";

const AGAIN_MS = 10_000;

let typeset: Typeset | null = null;
let asked = false;
const waiting = new Set<() => void>();

/** Null until it has come. */
export function formulas(): Typeset | null {
  return typeset;
}

/** Runs `then` once formulas can be drawn. Where the files cannot be had, they stay text until they can. */
export function bringFormulas(then: () => void): void {
  waiting.add(then);
  if (asked) return;
  asked = true;
  void Promise.all([import("../core/typeset"), import("katex/dist/katex.min.css")]).then(
    ([loaded]) => {
      typeset = loaded.typeset;
      for (const each of waiting) each();
      waiting.clear();
    },
    () => setTimeout(() => (asked = false), AGAIN_MS),
  );
}
