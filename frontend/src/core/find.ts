/* Looks for words in the conversations that are kept here: what is found at once, also without a connection. */

import { chain, shown, title, type Conversation } from "./conversation";
import { said } from "./reading";

const AROUND = 60; // characters before a hit, and twice as many behind it

/** By conversation that has all the words in its title or in one of its turns: the place of the first one, empty where it
    is the title. */
export function findHere(conversations: readonly Conversation[], words: string): Map<string, string> {
  const wanted = folded(words).split(/\s+/).filter((word) => word !== "");
  const found = new Map<string, string>();
  if (wanted.length === 0) return found;
  for (const conversation of conversations) {
    const place = placeIn(conversation, wanted);
    if (place !== null) found.set(conversation.id, place);
  }
  return found;
}

function placeIn(conversation: Conversation, wanted: readonly string[]): string | null {
  if (hasAll(folded(title(conversation)), wanted)) return "";
  for (const turn of shown(conversation)) {
    const text = `${turn.question}\n${said(chain(turn))}`;
    if (hasAll(folded(text), wanted)) return snippet(text, wanted[0] ?? "");
  }
  return null;
}

function hasAll(text: string, wanted: readonly string[]): boolean {
  return wanted.every((word) => text.includes(word));
}

function snippet(text: string, word: string): string {
  const at = Math.max(0, folded(text).indexOf(word));
  const [from, to] = [Math.max(0, at - AROUND), Math.min(text.length, at + 2 * AROUND)];
  const cut = text.slice(from, to).replace(/\s+/g, " ").trim();
  return `${from > 0 ? "…" : ""}${cut}${to < text.length ? "…" : ""}`;
}

// Letters only change into as many others here, so that places stay where they are.
function folded(text: string): string {
  const lower = text.toLowerCase();
  return lower.length === text.length ? lower : text;
}
