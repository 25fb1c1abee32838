/* The fold of one response: its events in order of sequence_number give its text and how it ended.

   state         event          result
   running n     n+1            applied
   running n     <= n           duplicate  (an overlapping replay, a second socket, another tab)
   running n     > n+1          gap        (nothing changes: the caller requests events after n)
   running n     place          duplicate  (a place in the queue has no number of its own)
   ended         anything       duplicate

   Two folds of one response never contradict each other: one has more events, and `moreAdvanced`
   picks it. So a snapshot of an answer may come from any tab and any moment, and the stream
   continues directly after it.

   The limits depend on the events alone, so every reader stores and shows the same. */

import type { Fault, ItemKind, Outcome, ResponseEvent, Segment, ServingInfo, Usage } from "./protocol";

/** `lost`: the server no longer has this response, so it can neither continue nor be shown whole. */
export type AnswerStatus = "queued" | "in_progress" | Outcome | "lost";

/** One output item: a message, reasoning, or the call of a tool. */
export interface Item {
  readonly kind: ItemKind;
  /** Where its characters begin in the answer's text. They end where the next item begins. */
  readonly at: number;
  /** The tool that is called; empty for an item that is not a call. */
  readonly name: string;
  /** The id that an output of the call names. Absent in an item that is not a call, and in one that
      an older version of this page stored. */
  readonly call?: string;
  /** cut: the answer ended within the item. */
  readonly state: "open" | "whole" | "cut";
  /** The number of its characters that are not stored. */
  readonly left: number;
}

export interface Part extends Item {
  readonly text: string;
}

export interface Answer extends Readonly<ServingInfo> {
  readonly responseId: string;
  /** sequence_number of the last event applied; -1 before the first. */
  readonly lastSeq: number;
  readonly status: AnswerStatus;
  /** The characters of all items, in order. */
  readonly text: string;
  /** Empty in an answer that an older version of this page stored: its text is one message. */
  readonly items: readonly Item[];
  /** The files that the answer cites, each once, in the order of their first citation. */
  readonly sources: readonly string[];
  /** The number of items that are not stored, because there were too many. */
  readonly more: number;
  /** The number of pieces that the text arrived in: a lower bound of its tokens while it runs. */
  readonly deltas: number;
  /** When the first and the latest piece of text arrived, in ms; null when they came in a replay,
      which does not show their pace. */
  readonly firstAt: number | null;
  readonly lastAt: number | null;
  readonly reason: string | null;
  readonly usage: Usage | null;
  readonly fault: Fault | null;
}

export type Verdict = "applied" | "duplicate" | "gap";

export interface Transition {
  readonly answer: Answer;
  readonly verdict: Verdict;
  /** The server's whole text differed from the joined pieces. The answer now has the server's text. */
  readonly corrected: boolean;
}

export const MAX_ITEMS = 200;
export const MAX_SOURCES = 50;
/** Of reasoning and calls together. Messages are stored whole. */
export const MAX_SIDE_CHARACTERS = 200_000;

export function newAnswer(responseId: string): Answer {
  return {
    responseId,
    lastSeq: -1,
    status: "queued",
    text: "",
    items: [],
    sources: [],
    more: 0,
    deltas: 0,
    firstAt: null,
    lastAt: null,
    reason: null,
    usage: null,
    fault: null,
    model: null,
    asked: null,
    segments: [],
    shortened: false,
    cached: false,
    continuable: false,
  };
}

export function isRunning(answer: Answer): boolean {
  return answer.status === "queued" || answer.status === "in_progress";
}

/** The items with their characters. */
export function parts(answer: Answer): Part[] {
  const { items, text } = answer;
  if (items.length === 0) return text === "" ? [] : [{ kind: "message", at: 0, name: "", state: "whole", left: 0, text }];
  return items.map((item, place) => ({ ...item, text: text.slice(item.at, items[place + 1]?.at) }));
}

/** The calls of the answer. The server requires an output for each before the answer is continued.
    Null where not all calls are known. */
export function calls(answer: Answer): { readonly kind: "function" | "custom"; readonly call: string }[] | null {
  if (answer.status !== "completed") return []; // for an answer that was cut short the server requires none
  if (answer.more > 0) return null;
  const toolCalls = [];
  for (const { kind, call } of answer.items) {
    if (kind !== "function" && kind !== "custom") continue;
    if (call === undefined) return null;
    toolCalls.push({ kind, call });
  }
  return toolCalls;
}

/** `receivedAt`: when the event arrived; null in a replay. */
export function apply(answer: Answer, event: ResponseEvent, receivedAt: number | null): Transition {
  if (!isRunning(answer) || event.seq <= answer.lastSeq || event.kind === "place") return { answer, verdict: "duplicate", corrected: false };
  if (event.seq > answer.lastSeq + 1) return { answer, verdict: "gap", corrected: false };
  const next = { ...answer, lastSeq: event.seq };
  switch (event.kind) {
    case "status":
      return transition({ ...next, status: event.status, ...event.serving });
    case "opened":
      return transition(withItem(next, event.item, event.name, event.call));
    case "delta":
      return transition({
        ...withDelta(withOpenItem(next, event.item), event.delta),
        status: "in_progress",
        deltas: answer.deltas + 1,
        firstAt: answer.text === "" ? receivedAt : answer.firstAt,
        lastAt: receivedAt,
      });
    case "text":
      return withWholeText(withOpenItem(next, event.item), event.text);
    case "closed":
      return transition(withLast(next, { state: event.whole ? "whole" : "cut" }));
    case "cited":
      return transition(withSource(next, event.file));
    case "end":
      return transition({
        ...next,
        status: event.outcome,
        reason: event.reason,
        usage: event.usage,
        fault: event.fault,
        ...event.serving,
      });
    case "other":
      return transition(next);
  }
}

function transition(answer: Answer): Transition {
  return { answer, verdict: "applied", corrected: false };
}

function withSource(answer: Answer, file: string): Answer {
  const isUnchanged = answer.sources.includes(file) || answer.sources.length >= MAX_SOURCES;
  return isUnchanged ? answer : { ...answer, sources: [...answer.sources, file] };
}

function withItem(answer: Answer, kind: ItemKind, name: string, call: string): Answer {
  if (answer.items.length >= MAX_ITEMS) return { ...answer, more: answer.more + 1 };
  return { ...answer, items: [...answer.items, { kind, at: answer.text.length, name, ...(call === "" ? {} : { call }), state: "open", left: 0 }] };
}

/** The answer with an open item of this kind. */
function withOpenItem(answer: Answer, kind: ItemKind): Answer {
  return answer.more > 0 || answer.items.at(-1)?.kind === kind ? answer : withItem(answer, kind, "", "");
}

function withLast(answer: Answer, changes: Partial<Item>): Answer {
  const last = answer.items.at(-1);
  return last === undefined || answer.more > 0 ? answer : { ...answer, items: [...answer.items.slice(0, -1), { ...last, ...changes }] };
}

function withDelta(answer: Answer, delta: string): Answer {
  const last = answer.items.at(-1);
  if (last === undefined || answer.more > 0) return answer;
  if (last.kind === "message") return { ...answer, text: answer.text + delta };
  const room = last.left > 0 ? 0 : MAX_SIDE_CHARACTERS - sideCharacters(answer);
  const piece = delta.length <= room ? delta : delta.slice(0, room).replace(/[\ud800-\udbff]$/, "");
  const longer = { ...answer, text: answer.text + piece };
  return piece === delta ? longer : withLast(longer, { left: last.left + delta.length - piece.length });
}

function sideCharacters({ items, text }: Answer): number {
  return items.reduce((sum, { kind, at }, place) => (kind === "message" ? sum : sum + (items[place + 1]?.at ?? text.length) - at), 0);
}

/** `whole`: the open item's whole text, as the server states it. */
function withWholeText(answer: Answer, whole: string): Transition {
  const last = answer.items.at(-1);
  if (last === undefined || answer.more > 0) return transition(answer);
  const before = withLast({ ...answer, text: answer.text.slice(0, last.at) }, { left: 0 });
  const after = withDelta(before, whole);
  const same = after.text === answer.text && after.items.at(-1)?.left === last.left;
  return same ? transition(answer) : { answer: after, verdict: "applied", corrected: true };
}

export function markLost(answer: Answer, fault: Fault): Answer {
  return isRunning(answer) ? { ...answer, status: "lost", fault } : answer;
}

/** Of two folds of the same response, the one with more events; with the earlier `firstAt` of the
    two. */
export function moreAdvanced(a: Answer, b: Answer): Answer {
  const [ahead, behind] = rank(a) >= rank(b) ? [a, b] : [b, a];
  if (behind.firstAt === null || (ahead.firstAt !== null && ahead.firstAt <= behind.firstAt)) return ahead;
  return { ...ahead, firstAt: behind.firstAt };
}

// An end from the stream is above `lost`, which only says that the stream could not be read.
function rank(answer: Answer): number {
  if (isRunning(answer)) return answer.lastSeq;
  return answer.status === "lost" ? 1e15 + answer.lastSeq : 2e15;
}

/** Reads a stored answer. An older version of this page stored messages only: its copy of a running
    answer may lack items, so that answer starts again from its first event. Throws if the record is
    not an answer. */
export function readAnswer(record: Answer): Answer {
  if (typeof record.text !== "string" || !Number.isInteger(record.lastSeq)) throw new Error("not an answer");
  if (!isItems(record.items, record.text)) return isRunning(record) ? newAnswer(record.responseId) : { ...withDefaults(record), items: [], more: 0 };
  return withDefaults(record);
}

/** Adds the fields that an older version of this page did not store. */
function withDefaults(record: Answer): Answer {
  const { segments, sources } = record;
  return { ...newAnswer(record.responseId), ...record, segments: isSegments(segments) ? segments : [], sources: isNames(sources) ? sources : [] };
}

function isNames(names: unknown): names is readonly string[] {
  return Array.isArray(names) && names.every((each) => typeof each === "string");
}

function isSegments(segments: unknown): segments is readonly Segment[] {
  return Array.isArray(segments) && segments.every((each: Partial<Segment> | null) => Number.isInteger(each?.item) && typeof each?.model === "string");
}

function isItems(items: unknown, text: string): items is readonly Item[] {
  if (!Array.isArray(items)) return false;
  let before = 0;
  return items.every((item: Partial<Item> | null) => {
    const at = item?.at;
    const good = typeof at === "number" && at >= before && at <= text.length && typeof item?.name === "string" && typeof item.left === "number";
    before = at ?? before;
    return good;
  });
}
