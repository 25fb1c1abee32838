/* What is sent with a question: its text, the response that it follows, and the outputs of the
   calls before it. */

import { calls, type Answer } from "./answer";
import { content, isExpired, type Attachment, type Part } from "./attachments";
import { turnsBefore, chain, visibleTurns, type Conversation, type Turn } from "./conversation";
import { messageText } from "./reading";

export interface Message {
  readonly role: "user" | "assistant";
  readonly content: string | readonly Part[];
}

/** The output of a call. */
export interface CallOutput {
  readonly type: "function_call_output" | "custom_tool_call_output";
  readonly call_id: string;
  readonly output: string;
}

export interface Context {
  readonly input: string | readonly (Message | CallOutput)[];
  readonly previousResponseId: string | null;
}

// This page runs no tools. When the user asks on, the model gets this as the output of each open
// call.
const NOT_RUN = "This tool was not run. The user went on without it.";

/** What is sent for a question. In a conversation on the server, it follows the turn before it,
    also where that failed: the server leaves out failed answers. Otherwise it follows the nearest
    earlier answer that can be continued. The continuation of an answer that was cut short has no
    input. */
export function contextOf(conversation: Conversation, turnId: string): Context {
  const turn = conversation.turns.find(({ id }) => id === turnId);
  const cut = turn?.before.at(-1);
  if (cut !== undefined) return { input: [], previousResponseId: cut.responseId };
  const previous = exchanges(conversation, turnId).at(-1)?.answers.at(-1) ?? null;
  const question = turn === undefined ? "" : content(turn.question, turn.attachments);
  const message = { role: "user" as const, content: question };
  const alone = typeof question === "string" ? question : [message];
  if (previous === null) return { input: alone, previousResponseId: predecessor(conversation, turn, null) };
  const openCalls = calls(previous);
  if (openCalls === null) return { input: wholeContext(conversation, turnId), previousResponseId: null };
  const outputs = openCalls.map(({ kind, call }): CallOutput => ({
    type: kind === "function" ? "function_call_output" : "custom_tool_call_output",
    call_id: call,
    output: NOT_RUN,
  }));
  const input = outputs.length === 0 ? alone : [...outputs, message];
  return { input, previousResponseId: predecessor(conversation, turn, previous.responseId) };
}

/** The response that a turn follows: in a conversation on the server, the last one before it;
    otherwise `previous`. */
function predecessor(conversation: Conversation, turn: Turn | undefined, previous: string | null): string | null {
  if (conversation.remote === null || turn === undefined) return previous;
  const path = turnsBefore(conversation, turn).flatMap((each) => chain(each));
  return path.at(-1)?.responseId ?? null;
}

/** All messages so far, for when the server no longer has the answer that the question follows.
    Attachments that have expired are left out. */
export function wholeContext(conversation: Conversation, turnId: string): Message[] {
  const turn = conversation.turns.find((turn) => turn.id === turnId);
  const messages: Message[] = [];
  for (const { question, attachments, answers } of exchanges(conversation, turnId)) {
    const available = attachments.filter((each) => !isExpired(each, turn?.sentAt ?? 0));
    messages.push({ role: "user", content: content(question, available) }, { role: "assistant", content: messageText(answers) });
  }
  return turn === undefined ? messages : [...messages, { role: "user", content: content(turn.question, turn.attachments) }];
}

function exchanges(conversation: Conversation, turnId: string): { question: string; attachments: readonly Attachment[]; answers: readonly Answer[] }[] {
  const turn = conversation.turns.find(({ id }) => id === turnId);
  return (turn === undefined ? visibleTurns(conversation) : turnsBefore(conversation, turn))
    .map(({ question, attachments, answer, before }) => ({ question, attachments, answers: answer !== null && isWhole(answer) ? [...before, answer] : before }))
    .filter(({ answers }) => answers.length > 0);
}

// A stopped answer without text cannot be continued; a failed or lost answer is not part of the
// dialogue.
function isWhole(answer: Answer): boolean {
  return answer.status === "completed" || ((answer.status === "incomplete" || answer.status === "cancelled") && answer.text !== "");
}
