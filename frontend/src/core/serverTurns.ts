/* The tree of a conversation as the server has it, as turns of this page.

   A question of this page carries its turn's id in the metadata of the response, so all devices have the same turns.
   Other clients' responses are turns of their own id. A response without input continues the one before it: both are one
   turn. Items that were added are turns, too: a user's message is a question, an assistant's its answer. */

import { fields, type Fields } from "./fields";
import { moreAdvanced, isRunning, newAnswer, type Answer } from "./answer";
import { fromMetadata, type Attachment } from "./attachments";
import { chain, newTurn, withTurn, type Conversation, type Turn } from "./conversation";
import { answerFromResponse } from "./replay";

/** One node of the tree. */
export interface Row {
  readonly id: string;
  readonly parent: string | null;
  /** In ms. */
  readonly createdAt: number;
  readonly input: readonly Fields[];
  /** Null: added items, or a response that is gone. */
  readonly response: Fields | null;
}

/** By node: what it follows. */
export type Parents = ReadonlyMap<string, string | null>;

export function readRow(value: unknown): Row | null {
  const row = fields(value);
  const [id, parent, at] = [row?.["id"], row?.["parent"] ?? null, row?.["created_at"]];
  if (row === null || typeof id !== "string" || typeof at !== "number" || (parent !== null && typeof parent !== "string")) return null;
  const input = Array.isArray(row["input"]) ? row["input"].map(fields).filter((item) => item !== null) : [];
  return { id, parent, createdAt: at * 1000, input, response: fields(row["response"]) };
}

/** The conversation with what the rows say, in the order in which the tree grew. `parents`: of all nodes. */
export function withRows(conversation: Conversation, rows: readonly Row[], parents: Parents): Conversation {
  return rows.reduce((current, row) => withRow(current, row, parents), conversation);
}

function withRow(conversation: Conversation, row: Row, parents: Parents): Conversation {
  const answer = answerFromResponse(row.response);
  if (answer === null) return withMessages(conversation, row, turnOf(conversation, row.parent, parents));
  const holder = conversation.turns.find((turn) => chain(turn).some(({ responseId }) => responseId === row.id));
  if (holder !== undefined) return withTurn(conversation, withAnswer(holder, answer));
  const before = turnOf(conversation, row.parent, parents);
  if (row.input.length === 0 && before?.answer?.responseId === row.parent && before.answer !== null && !isRunning(before.answer)) {
    return withTurn(conversation, { ...before, phase: "accepted", problem: null, attempt: before.attempt + 1, before: chain(before), answer });
  }
  return withTurn(conversation, asTurn(conversation, row, answer, before));
}

function withAnswer(turn: Turn, answer: Answer): Turn {
  const merge = (each: Answer): Answer => (each.responseId === answer.responseId && !isRunning(answer) ? moreAdvanced(each, answer) : each);
  return { ...turn, answer: turn.answer === null ? null : merge(turn.answer), before: turn.before.map(merge) };
}

function asTurn(conversation: Conversation, row: Row, answer: Answer, before: Turn | undefined): Turn {
  const metadata = fields(row.response?.["metadata"]) ?? {};
  const id = typeof metadata["turn"] === "string" && TURN.test(metadata["turn"]) ? metadata["turn"] : row.id;
  const existing = conversation.turns.find((turn) => turn.id === id);
  const askedAt = Number(metadata["asked"]);
  const at = Number.isFinite(askedAt) && Math.abs(askedAt - row.createdAt) < LONGEST_WAIT_MS ? askedAt : row.createdAt;
  const model = row.response?.["model"];
  // A question of this page that waits for an answer has it now; one that has another answer is another turn.
  if (existing !== undefined && existing.answer === null) return { ...existing, phase: "accepted", problem: null, answer };
  const files = fromMetadata(metadata);
  const turn = newTurn(existing === undefined ? id : row.id, before?.id ?? null, question(row.input, files), typeof model === "string" ? model : null, "", at);
  return { ...turn, phase: "accepted", attachments: files.length > 0 ? files : attachmentsIn(row.input), trimmed: row.response?.["truncation"] === "auto", answer };
}

/** What a turn's id looks like. */
const TURN = /^[\w-]{6,64}$/;
/** A question may wait in a browser without a connection; a clock that differs by more is not believed. */
const LONGEST_WAIT_MS = 30 * 24 * 3600 * 1000;

/** The turn of the nearest node that has one. */
export function turnOf(conversation: Conversation, node: string | null, parents: Parents): Turn | undefined {
  for (let at = node, steps = parents.size; at !== null && steps >= 0; at = parents.get(at) ?? null, steps -= 1) {
    const here = at;
    // Added items can be several turns, of which the last one is where the next turn follows.
    const nearest = conversation.turns.filter((turn) => chain(turn).some(({ responseId }) => responseId === here)).at(-1);
    if (nearest !== undefined) return nearest;
  }
  return undefined;
}

// What came before a first question, such as instructions, is no turn.
function withMessages(conversation: Conversation, row: Row, parent: Turn | undefined): Conversation {
  let [current, before] = [conversation, parent?.id ?? null];
  let open: Turn | null = null;
  const close = (answer: string): void => {
    if (open === null) return;
    const lastAnswer: Answer = { ...newAnswer(row.id), status: "completed", text: answer };
    current = withTurn(current, { ...open, phase: "accepted", answer: lastAnswer });
    before = open.id;
    open = null;
  };
  row.input.forEach((item, place) => {
    if (item["type"] !== undefined && item["type"] !== "message") return;
    if (item["role"] === "user") {
      close("");
      open = newTurn(`${row.id}.${place}`, before, textOf(item), null, "", row.createdAt + place);
    } else if (item["role"] === "assistant") close(textOf(item));
  });
  close("");
  return current;
}

/** The text of the last message of a user; without those that this page put before it. */
function question(input: readonly Fields[], files: readonly Attachment[]): string {
  const message = input.filter((item) => item["role"] === "user").at(-1);
  if (message === undefined) return "";
  const content = message["content"];
  return textOf(files.length > 0 && Array.isArray(content) ? { content: content.slice(-1) } : message);
}

/** The uploads that the last message of a user names. */
function attachmentsIn(input: readonly Fields[]): Attachment[] {
  const parts = input.filter((item) => item["role"] === "user").at(-1)?.["content"];
  if (!Array.isArray(parts)) return [];
  return parts.map(fields).flatMap((part): Attachment[] => {
    const [type, fileId, name] = [part?.["type"], part?.["file_id"], part?.["filename"]];
    if (typeof fileId !== "string" || (type !== "input_image" && type !== "input_file")) return [];
    return [{ fileId, name: typeof name === "string" ? name : "", kind: type === "input_image" ? "image" : "file", bytes: 0, expiresAt: 0 }];
  });
}

/** What is said in an item; not what files in it say. */
function textOf(item: Fields): string {
  const content = item["content"];
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .map(fields)
    .flatMap((part) => (typeof part?.["text"] === "string" && part["filename"] === undefined ? [part["text"]] : []))
    .join("");
}
