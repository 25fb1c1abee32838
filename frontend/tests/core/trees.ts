/* Helpers for tests of drawn trees. */

import type { El, Node } from "../../src/core/nodes";

/** Without the parts that are only for copying. */
export function text(nodes: readonly Node[]): string {
  return nodes.map((node) => (typeof node === "string" ? node : node.attributes.class === "as-written" ? "" : text(node.children))).join("");
}

export function all(nodes: readonly Node[]): El[] {
  return nodes.flatMap((node) => (typeof node === "string" ? [] : [node, ...all(node.children)]));
}

/** The elements with this class. */
export function classed(nodes: readonly Node[], name: string): El[] {
  return all(nodes).filter(({ attributes }) => attributes.class?.split(" ").includes(name));
}
