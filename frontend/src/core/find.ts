/* Finds words in the conversations that this browser stores. It works at once, also without a
   connection. */

import { chain, visibleTurns, title, type Conversation } from "./conversation";
import { messageText } from "./reading";

const AROUND = 60; // characters before a match, and twice as many after it

/** By conversation with all the words in its title or in one turn: the text around the first word;
    empty for the title. */
export function findLocally(conversations: readonly Conversation[], words: string): Map<string, string> {
  const terms = foldCase(words).split(/\s+/).filter((word) => word !== "");
  const snippets = new Map<string, string>();
  if (terms.length === 0) return snippets;
  for (const conversation of conversations) {
    const snippet = snippetFor(conversation, terms);
    if (snippet !== null) snippets.set(conversation.id, snippet);
  }
  return snippets;
}

function snippetFor(conversation: Conversation, terms: readonly string[]): string | null {
  if (hasAll(foldCase(title(conversation)), terms)) return "";
  for (const turn of visibleTurns(conversation)) {
    const text = `${turn.question}\n${messageText(chain(turn))}`;
    if (hasAll(foldCase(text), terms)) return snippet(text, terms[0] ?? "");
  }
  return null;
}

function hasAll(text: string, terms: readonly string[]): boolean {
  return terms.every((word) => text.includes(word));
}

function snippet(text: string, word: string): string {
  const at = Math.max(0, foldCase(text).indexOf(word));
  const [from, to] = [Math.max(0, at - AROUND), Math.min(text.length, at + 2 * AROUND)];
  const cut = text.slice(from, to).replace(/\s+/g, " ").trim();
  return `${from > 0 ? "…" : ""}${cut}${to < text.length ? "…" : ""}`;
}

// Keeps the length, so that indexes stay valid.
function foldCase(text: string): string {
  const lower = text.toLowerCase();
  return lower.length === text.length ? lower : text;
}
