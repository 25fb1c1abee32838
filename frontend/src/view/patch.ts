/* Updates a part of the document to a tree and changes only the differences. So drawn text keeps
   its place, selection and focus while the answer grows. */

import { MATH_TAGS, SVG_TAGS, type Attribute, type El, type Node as Tree } from "../core/nodes";

const NAMESPACES: ReadonlyMap<string, string> = new Map([
  ...MATH_TAGS.map((tag) => [tag, "http://www.w3.org/1998/Math/MathML"] as const),
  ...SVG_TAGS.map((tag) => [tag, "http://www.w3.org/2000/svg"] as const),
]);

export function patch(parent: HTMLElement, before: readonly Tree[], after: readonly Tree[]): void {
  for (let place = 0; place < after.length; place += 1) {
    const next = after[place] as Tree;
    const node = parent.childNodes[place];
    const last = before[place];
    if (node === undefined || last === undefined) parent.appendChild(create(next));
    else if (last !== next) patchOne(parent, node, last, next);
  }
  while (parent.childNodes.length > after.length) parent.lastChild?.remove();
}

function patchOne(parent: HTMLElement, node: ChildNode, last: Tree, next: Tree): void {
  if (typeof last === "string" || typeof next === "string") {
    if (typeof last === "string" && typeof next === "string") patchText(node as Text, last, next);
    else parent.replaceChild(create(next), node);
    return;
  }
  // Only parts of formulas have styles; they are replaced.
  if (last.tag !== next.tag || last.style !== undefined || next.style !== undefined || last.counts !== next.counts) {
    parent.replaceChild(create(next), node);
    return;
  }
  const element = node as HTMLElement;
  attributes(element, last, next);
  if (next.own === true && last.own === true) return;
  patch(element, last.children, next.children);
}

// Appending keeps the reader's selection in the text; replacing would lose it.
function patchText(node: Text, last: string, next: string): void {
  if (next.startsWith(last)) {
    if (next.length > last.length) node.appendData(next.slice(last.length));
  } else node.data = next;
}

function attributes(element: HTMLElement, last: El, next: El): void {
  for (const name of Object.keys(last.attributes) as Attribute[]) {
    if (!(name in next.attributes)) element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(next.attributes)) {
    if (last.attributes[name as Attribute] !== value) element.setAttribute(name, value);
  }
}

function create(tree: Tree): ChildNode {
  if (typeof tree === "string") return document.createTextNode(tree);
  const space = NAMESPACES.get(tree.tag);
  const element = space === undefined ? document.createElement(tree.tag) : (document.createElementNS(space, tree.tag) as HTMLElement);
  for (const [name, value] of Object.entries(tree.attributes)) element.setAttribute(name, value);
  // The page's policy allows single style properties, but no style attribute.
  if (tree.style !== undefined) Object.assign(element.style, tree.style);
  for (const child of tree.children) element.appendChild(create(child));
  return element;
}
