/* The fold of one response: its events in order of sequence_number give its text and how it ended.

   state         event          result
   running n     n+1            applied
   running n     <= n           duplicate  (a replay that overlaps, a second socket, another tab's work)
   running n     > n+1          gap        (nothing changes: the caller asks again from n)
   running n     place          duplicate  (it says how things stand, and is in no series)
   ended         anything       duplicate

   Two folds of one response never contradict each other, one is only further: `further` picks it. So a snapshot of an
   answer may come from any tab and any moment, and the stream goes on exactly behind it.

   What is kept is bounded by the events alone, so every reader keeps, and shows, the same. */

import type { Fault, ItemKind, Outcome, ResponseEvent, Segment, ServingInfo, Usage } from "./protocol";

/** `lost`: the server no longer has this response, so it can neither go on nor be shown whole. */
export type AnswerStatus = "queued" | "in_progress" | Outcome | "lost";

/** One output item: a message, reasoning, or the call of a tool. */
export interface Item {
  readonly kind: ItemKind;
  /** Where its characters begin in the answer's text. They end where those of the next one begin. */
  readonly at: number;
  /** The tool that is called; empty for what is no call. */
  readonly name: string;
  /** The id that an output of the call names; absent in what is no call and in what an older version of this page kept. */
  readonly call?: string;
  /** cut: the answer ended in the middle of it. */
  readonly state: "open" | "whole" | "cut";
  /** So many of its characters are not kept. */
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
  /** Empty in an answer that an older version of this page kept: its text is one message. */
  readonly items: readonly Item[];
  /** The files that it cites, each once, in the order of their first citation. */
  readonly sources: readonly string[];
  /** Items that are not kept, because there were too many. */
  readonly more: number;
  /** How many pieces the text came in: a lower bound of its tokens while it runs. */
  readonly deltas: number;
  /** When the first and the latest piece of text were seen to arrive, in ms; null when they came as a replay,
      which says nothing about their pace. */
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
  /** The server's statement of the whole text differed from what the pieces gave; the server's was taken. */
  readonly corrected: boolean;
}

export const MAX_ITEMS = 200;
export const MAX_SOURCES = 50;
/** Characters of reasoning and calls together. Messages are kept as far as the model writes them. */
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

/** Its calls, all of which the server wants an output for before the answer is continued. Null where not all are known. */
export function calls(answer: Answer): { readonly kind: "function" | "custom"; readonly call: string }[] | null {
  if (answer.status !== "completed") return []; // of one that was cut short the server wants none
  if (answer.more > 0) return null;
  const toolCalls = [];
  for (const { kind, call } of answer.items) {
    if (kind !== "function" && kind !== "custom") continue;
    if (call === undefined) return null;
    toolCalls.push({ kind, call });
  }
  return toolCalls;
}

/** `seenAt` is the time the event was seen to arrive, or null in a replay. */
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

/** The answer with an open item that characters of this kind can belong to. */
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

/** The server's statement of the open item's whole text. */
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

/** Of two folds of the same response, the further one; with the earliest sight of its first piece that either had. */
export function moreAdvanced(a: Answer, b: Answer): Answer {
  const [ahead, behind] = rank(a) >= rank(b) ? [a, b] : [b, a];
  if (behind.firstAt === null || (ahead.firstAt !== null && ahead.firstAt <= behind.firstAt)) return ahead;
  return { ...ahead, firstAt: behind.firstAt };
}

// An end that came from the stream stands above `lost`, which only says that the stream could not be had.
function rank(answer: Answer): number {
  if (isRunning(answer)) return answer.lastSeq;
  return answer.status === "lost" ? 1e15 + answer.lastSeq : 2e15;
}

/** An answer that was kept, perhaps by an older version of this page, which knew messages only. What it has of a running
    one may lack items, so that is begun again. Throws at what is no answer. */
export function readAnswer(record: Answer): Answer {
  if (typeof record.text !== "string" || !Number.isInteger(record.lastSeq)) throw new Error("not an answer");
  if (!isItems(record.items, record.text)) return isRunning(record) ? newAnswer(record.responseId) : { ...withDefaults(record), items: [], more: 0 };
  return withDefaults(record);
}

/** With what an older version of this page did not keep. */
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
