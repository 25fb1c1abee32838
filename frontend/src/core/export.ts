/* A conversation as a file. The model's text is written unchanged. */

import { parts, type Answer, type Part } from "./answer";
import { chain, visibleTurns, title, type Conversation, type Turn } from "./conversation";
import { endNote } from "./messages";
import { fence } from "./partialMarkdown";
import { firstModel, readableParts } from "./reading";
import { texts } from "./words";

const FORMAT = "tailrace.conversation";
const VERSION = 1;

/** The visible turns, for people. Reasoning is left out. */
export function asMarkdown(conversation: Conversation): string {
  const turns = visibleTurns(conversation).flatMap((turn) => [questionBlock(turn), ...answerBlocks(turn)]);
  return `${[`# ${title(conversation)}`, ...turns].join("\n\n")}\n`;
}

/** All that is stored, for programs: also the other versions, reasoning, and calls. Times as in RFC
    3339. */
export function asJson(conversation: Conversation): string {
  const turns = conversation.turns.filter(({ phase }) => phase !== "withdrawn");
  const body = {
    format: FORMAT,
    version: VERSION,
    id: conversation.id,
    server_id: conversation.remote,
    title: title(conversation),
    created_at: new Date(conversation.createdAt).toISOString(),
    shown: visibleTurns(conversation).map(({ id }) => id),
    turns: turns.map((turn) => ({
      id: turn.id,
      follows: turn.parent,
      asked_at: new Date(turn.askedAt).toISOString(),
      question: turn.question,
      attachments: turn.attachments.map(({ fileId, name, kind, bytes }) => ({ file_id: fileId, name, type: kind, bytes })),
      model: turn.model,
      state: turn.phase,
      answers: chain(turn).map(answerRecord),
    })),
  };
  return `${JSON.stringify(body, null, 2)}\n`;
}

function answerRecord(answer: Answer): object {
  return {
    response_id: answer.responseId,
    status: answer.status,
    reason: answer.reason,
    error: answer.fault,
    model: answer.model,
    asked_model: answer.asked,
    models: answer.segments,
    usage: answer.usage === null ? null : { input_tokens: answer.usage.input, output_tokens: answer.usage.output },
    sources: answer.sources,
    items: parts(answer).map(({ kind, name, call, state, left, text }) => ({
      type: kind,
      ...(name === "" ? {} : { name }),
      ...(call === undefined || call === "" ? {} : { call_id: call }),
      state,
      text,
      characters_not_kept: left,
    })),
    items_not_kept: answer.more,
  };
}

function questionBlock({ question, askedAt, attachments }: Turn): string {
  const names = attachments.map(({ name }) => `\n> *${name}*`).join("");
  // A quote, so that nothing in it becomes a heading of the file.
  return `## ${texts().question}\n\n*${stamp(askedAt)}*\n\n${question.split("\n").map((line) => `> ${line}`.trimEnd()).join("\n")}${names === "" ? "" : `\n>${names}`}`;
}

function answerBlocks(turn: Turn): string[] {
  const answers = chain(turn);
  const [first, last] = [answers[0], answers.at(-1)];
  if (first === undefined || last === undefined) return [];
  const model = firstModel(first);
  const end = endNote(last)?.words;
  const sources = [...new Set(answers.flatMap((answer) => answer.sources))];
  return [
    `## ${texts().answer}`,
    ...(model === null ? [] : [`*${model}*`]),
    ...readableParts(answers).flatMap(block),
    ...(sources.length === 0 ? [] : [`*${texts().sources(sources)}*`]),
    ...(end === undefined ? [] : [`*${end}*`]),
  ];
}

function block({ kind, name, text }: Part): string[] {
  if (kind === "reasoning") return [];
  if (kind === "message") return text === "" ? [] : [text + closingFence(text)];
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const marks = "`".repeat(longest + 1);
  return [`*${texts().callOf(name === "" ? texts().namelessTool : name)}*`, `${marks}${kind === "function" ? "json" : ""}\n${text}\n${marks}`];
}

/** The fence that closes a block of code that the text leaves open, so that the block ends with the
    answer. */
function closingFence(text: string): string {
  for (let at = 0; at < text.length; ) {
    const code = fence(text, at);
    if (code?.open === true) {
      const [, before = "", marks = ""] = /^(.*?)(`{3,}|~{3,})/.exec(text.slice(at)) ?? [];
      return `${text.endsWith("\n") ? "" : "\n"}${before.replace(/[^>]/g, " ")}${marks}`;
    }
    const next = text.indexOf("\n", at) + 1;
    at = code?.end ?? (next === 0 ? text.length : next);
  }
  return "";
}

/** To the minute, in UTC. */
function stamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
