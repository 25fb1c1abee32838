/* The parts of an answer that are loaded when an answer first has one: formulas and the colours of
   code. Until a part is loaded, and where it cannot be loaded, the source is shown. */

import type { Colour, Typeset } from "../core/tree";
import { Lazy } from "./lazy";

export const formulas = new Lazy<Typeset>(async () => {
  const [{ typeset }] = await Promise.all([import("../core/typeset"), import("katex/dist/katex.min.css")]);
  return typeset;
});

export const colours = new Lazy<Colour>(async () => (await import("../core/colours")).highlight);
