/* JSON for reading. Only the space between tokens changes. Parsing into values and writing them
   again would lose digits of long numbers, duplicate members, and the order of numeric keys. */

/** Longer texts are not indented; deeper levels are indented like the deepest one. */
const LONGEST = 20_000;
const DEEPEST = 16;

/** `text` with one member per line; null if it is not complete JSON, or too long. */
export function indentJson(text: string): string | null {
  if (text.length > LONGEST || !isJson(text)) return null;
  let out = "";
  let depth = 0;
  const line = (): string => `\n${"  ".repeat(Math.min(depth, DEEPEST))}`;
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[[\]{},:]|[^\s"[\]{},:]+/g) ?? [];
  tokens.forEach((token, place) => {
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    const empty = closes && (tokens[place - 1] === "{" || tokens[place - 1] === "[");
    if (closes) depth -= 1;
    if (closes && !empty) out += line();
    out += token;
    if (opens) depth += 1;
    const next = tokens[place + 1];
    if (token === "," || (opens && next !== "}" && next !== "]")) out += line();
    if (token === ":") out += " ";
  });
  return out;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
