/* JSON for reading. Nothing is parsed into values and written again: that would lose digits of long numbers, members that
   come twice, and the order of numbered ones. Only the space between the tokens changes. */

/** Longer texts, and deeper levels, are not worth it. */
const LONGEST = 20_000;
const DEEPEST = 16;

/** `text` with one member to a line; null if it is not whole JSON, or too long. */
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
