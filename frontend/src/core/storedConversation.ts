/* Reads a stored conversation. */

import { readAnswer, type Answer } from "./answer";
import { readAttachments } from "./attachments";
import { UNNAMED, type Conversation, type Label, type Turn } from "./conversation";
import { readStampedSettings, readSettings, DEFAULT_SETTINGS } from "./settings";

/** Null: not a conversation. The record may be damaged, or from another version of this page. */
export function readConversation(raw: string): Conversation | null {
  try {
    const value = JSON.parse(raw) as Conversation;
    const good =
      typeof value.id === "string" &&
      typeof value.createdAt === "number" &&
      Array.isArray(value.turns) &&
      value.turns.every(
        (turn) =>
          typeof turn.id === "string" &&
          typeof turn.question === "string" &&
          typeof turn.askedAt === "number" &&
          typeof turn.attempt === "number",
      );
    if (!good) return null;
    // An older version of this page stored one path: each turn follows the one before it.
    const turns = value.turns.map((turn, place) => readTurn(turn, value.turns[place - 1]?.id ?? null));
    // That version had no settings: the model belonged to the page.
    const settings = (value.settings as unknown) === undefined ? { ...DEFAULT_SETTINGS, model: turns.at(-1)?.model ?? null, at: 0 } : readStampedSettings(value.settings);
    return { id: value.id, createdAt: value.createdAt, ...readServerFields(value), turns, chosen: readChoices(value.chosen), settings };
  } catch {
    return null;
  }
}

// Adds the fields that older versions of this page did not store.
function readTurn(record: Turn, last: string | null): Turn {
  const [parent, before, settings]: unknown[] = [record.parent, record.before, record.settings];
  return {
    ...record,
    parent: parent === null || typeof parent === "string" ? parent : last,
    attachments: readAttachments(record.attachments),
    settings: typeof settings === "object" && settings !== null ? readSettings(settings) : null,
    trimmed: (record.trimmed as unknown) === true,
    answer: record.answer === null ? null : readAnswer(record.answer),
    before: Array.isArray(before) ? before.map((each) => readAnswer(each as Answer)) : [],
  };
}

// Older versions of this page had no conversations on the server.
function readServerFields(record: Partial<Record<keyof Conversation, unknown>>): Pick<Conversation, "remote" | "label" | "usedAt"> {
  const label = record.label as Partial<Label> | null | undefined;
  const good = typeof label?.name === "string" && typeof label.pinned === "boolean" && Number.isFinite(label.at);
  return {
    remote: typeof record.remote === "string" ? record.remote : null,
    label: good ? (label as Label) : UNNAMED,
    usedAt: Number.isFinite(record.usedAt) ? (record.usedAt as number) : 0,
  };
}

function readChoices(record: unknown): Conversation["chosen"] {
  if (typeof record !== "object" || record === null) return {};
  return Object.fromEntries(Object.entries(record as Conversation["chosen"]).filter(([, choice]) => typeof choice?.turn === "string" && Number.isFinite(choice.at)));
}
