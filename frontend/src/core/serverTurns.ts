/* Makes turns of the server's tree of a conversation.

   The metadata of a response has the id of its turn on this page, so all devices have the same
   turns. A response of another client is a turn with the response's id. A response without input
   continues the one before it: both are one turn. Added items are turns too: a user's message is a
   question, an assistant's message its answer. */

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
  /** Null: added items, or a deleted response. */
  readonly response: Fields | null;
}

/** By node: its parent. */
export type Parents = ReadonlyMap<string, string | null>;

export function readRow(value: unknown): Row | null {
  const row = fields(value);
  const [id, parent, at] = [row?.["id"], row?.["parent"] ?? null, row?.["created_at"]];
  if (row === null || typeof id !== "string" || typeof at !== "number" || (parent !== null && typeof parent !== "string")) return null;
  const input = Array.isArray(row["input"]) ? row["input"].map(fields).filter((item) => item !== null) : [];
  return { id, parent, createdAt: at * 1000, input, response: fields(row["response"]) };
}

/** The conversation with the turns of these rows, which are in the order of creation. `parents`:
    those of all nodes. */
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
  // A waiting question of this page gets its answer. A question with another answer stays, and a
  // new turn is added.
  if (existing !== undefined && existing.answer === null) return { ...existing, phase: "accepted", problem: null, answer };
  const files = fromMetadata(metadata);
  const turn = newTurn(existing === undefined ? id : row.id, before?.id ?? null, question(row.input, files), typeof model === "string" ? model : null, "", at);
  return { ...turn, phase: "accepted", attachments: files.length > 0 ? files : attachmentsIn(row.input), trimmed: row.response?.["truncation"] === "auto", answer };
}

/** The format of a turn's id. */
const TURN = /^[\w-]{6,64}$/;
/** The longest time that a question may have waited in a browser without a connection. A larger
    difference means a wrong clock. */
const LONGEST_WAIT_MS = 30 * 24 * 3600 * 1000;

/** The turn of this node, or of its nearest ancestor with a turn. */
export function turnOf(conversation: Conversation, node: string | null, parents: Parents): Turn | undefined {
  for (let at = node, steps = parents.size; at !== null && steps >= 0; at = parents.get(at) ?? null, steps -= 1) {
    const here = at;
    // Added items can be several turns. The next turn follows the last of them.
    const nearest = conversation.turns.filter((turn) => chain(turn).some(({ responseId }) => responseId === here)).at(-1);
    if (nearest !== undefined) return nearest;
  }
  return undefined;
}

// Items before the first question, such as instructions, are not turns.
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

/** The text of the user's last message, without the attached texts that this page put before it. */
function question(input: readonly Fields[], files: readonly Attachment[]): string {
  const message = input.filter((item) => item["role"] === "user").at(-1);
  if (message === undefined) return "";
  const content = message["content"];
  return textOf(files.length > 0 && Array.isArray(content) ? { content: content.slice(-1) } : message);
}

/** The uploads in the user's last message. */
function attachmentsIn(input: readonly Fields[]): Attachment[] {
  const parts = input.filter((item) => item["role"] === "user").at(-1)?.["content"];
  if (!Array.isArray(parts)) return [];
  return parts.map(fields).flatMap((part): Attachment[] => {
    const [type, fileId, name] = [part?.["type"], part?.["file_id"], part?.["filename"]];
    if (typeof fileId !== "string" || (type !== "input_image" && type !== "input_file")) return [];
    return [{ fileId, name: typeof name === "string" ? name : "", kind: type === "input_image" ? "image" : "file", bytes: 0, expiresAt: 0 }];
  });
}

/** The text of an item, without the text of files in it. */
function textOf(item: Fields): string {
  const content = item["content"];
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .map(fields)
    .flatMap((part) => (typeof part?.["text"] === "string" && part["filename"] === undefined ? [part["text"]] : []))
    .join("");
}
