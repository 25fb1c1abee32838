/* A conversation as this browser keeps it. Every tab holds one, works on it alone and joins what others wrote:
   `join` is commutative, associative and idempotent, so it does not matter in which order tabs hear from each other.

   It is a tree: another answer to a question, or the question in other words, is a turn beside the first one (a
   version). So nothing that was said is ever replaced. One path through the tree is on show. */

import { calls, further, isRunning, readAnswer, type Answer } from "./answer";
import { said } from "./reading";

/** next: it is sent when the answer before it has ended · sending: it is on its way · unsent: it was not accepted,
    `problem` says why · accepted: it has an answer · withdrawn: taken back into the composer, no longer shown. */
export type Phase = "next" | "sending" | "unsent" | "accepted" | "withdrawn";

export interface Problem {
  readonly words: string;
  /** Whether the same question could be accepted at another time. */
  readonly again: boolean;
  /** It is sent by itself when a connection is there. */
  readonly waits?: boolean;
  readonly code: string;
}

export interface Turn {
  readonly id: string;
  /** The turn that it follows; null: none. */
  readonly parent: string | null;
  readonly question: string;
  /** The place in the conversation; `sentAt` is when the current attempt was sent. Both in ms. */
  readonly askedAt: number;
  readonly sentAt: number;
  readonly model: string | null;
  /** Counts the responses that were asked for, of which each continues those before it. */
  readonly attempt: number;
  /** Older messages may be left out where all are too many for the model. */
  readonly trimmed: boolean;
  /** Counts changes within one attempt before it has an answer. */
  readonly revision: number;
  readonly phase: Phase;
  readonly problem: Problem | null;
  readonly stopWanted: boolean;
  /** The tab that sends; another tab must not send the same question. */
  readonly tab: string;
  readonly answer: Answer | null;
  /** Responses that were cut short; each is continued by the next one, and the last of them by `answer`. */
  readonly before: readonly Answer[];
}

/** The version that a reader wanted to see, and when. */
export interface Choice {
  readonly turn: string;
  readonly at: number;
}

export interface Conversation {
  readonly id: string;
  readonly createdAt: number;
  readonly turns: readonly Turn[];
  /** By the turn that the versions follow ("": none). Without a choice the newest version is shown. */
  readonly chosen: Readonly<Record<string, Choice>>;
}

export function newConversation(id: string, now: number): Conversation {
  return { id, createdAt: now, turns: [], chosen: {} };
}

export function newTurn(id: string, parent: string | null, question: string, model: string | null, tab: string, now: number): Turn {
  return {
    id,
    parent,
    question,
    askedAt: now,
    sentAt: now,
    model,
    attempt: 1,
    trimmed: false,
    revision: 0,
    phase: "sending",
    problem: null,
    stopWanted: false,
    tab,
    answer: null,
    before: [],
  };
}

/** The responses that are read as the answer, in order. */
export function chain({ before, answer }: Turn): readonly Answer[] {
  return answer === null ? before : [...before, answer];
}

/** The turns on show, in order. */
export function shown(conversation: Conversation): readonly Turn[] {
  const { children } = tree(conversation);
  const path: Turn[] = [];
  const known = new Set<string>(); // what was damaged in the store may follow itself
  for (let at = ROOT; !known.has(at); ) {
    known.add(at);
    const found = children.get(at) ?? [];
    const turn = found.find(({ id }) => id === conversation.chosen[at]?.turn) ?? found.at(-1);
    if (turn === undefined) break;
    path.push(turn);
    at = turn.id;
  }
  return path;
}

/** The turns that follow the same one, the oldest first; the turn itself is one of them. */
export function versions(conversation: Conversation, turn: Turn): readonly Turn[] {
  const { parents, children } = tree(conversation);
  return children.get(parents.get(turn.id) ?? ROOT) ?? [];
}

/** The turns before this one, the first one first. */
export function before(conversation: Conversation, turn: Turn): readonly Turn[] {
  const { byId, parents } = tree(conversation);
  const path: Turn[] = [];
  let at = byId.get(parents.get(turn.id) ?? ROOT);
  while (at !== undefined && !path.includes(at)) {
    path.unshift(at);
    at = byId.get(parents.get(at.id) ?? ROOT);
  }
  return path;
}

/** Shows this turn among its versions. */
export function choosing(conversation: Conversation, turn: Turn, now: number): Conversation {
  const parent = tree(conversation).parents.get(turn.id) ?? ROOT;
  const at = Math.max(now, (conversation.chosen[parent]?.at ?? 0) + 1); // later than the choice that it follows
  return { ...conversation, chosen: { ...conversation.chosen, [parent]: { turn: turn.id, at } } };
}

const ROOT = "";

interface Tree {
  readonly byId: ReadonlyMap<string, Turn>;
  /** By turn: what it follows, ROOT where that is nothing. */
  readonly parents: ReadonlyMap<string, string>;
  /** By what they follow: the turns that are not withdrawn. */
  readonly children: ReadonlyMap<string, readonly Turn[]>;
}

const trees = new WeakMap<Conversation, Tree>();

function tree(conversation: Conversation): Tree {
  let found = trees.get(conversation);
  if (found === undefined) trees.set(conversation, (found = grow(conversation)));
  return found;
}

function grow({ turns }: Conversation): Tree {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const parents = new Map<string, string>();
  const children = new Map<string, Turn[]>();
  for (const turn of turns) {
    let parent = turn.parent === null ? undefined : byId.get(turn.parent);
    // What follows a question that was taken back follows what came before that.
    for (let steps = turns.length; parent?.phase === "withdrawn" && steps > 0; steps -= 1) {
      parent = parent.parent === null ? undefined : byId.get(parent.parent);
    }
    const place = parent?.id ?? ROOT;
    parents.set(turn.id, place);
    if (turn.phase === "withdrawn") continue;
    const beside = children.get(place);
    if (beside === undefined) children.set(place, [turn]);
    else beside.push(turn);
  }
  return { byId, parents, children };
}

export function isBusy(turn: Turn): boolean {
  return turn.phase === "sending" || (turn.phase === "accepted" && turn.answer !== null && isRunning(turn.answer));
}

/** What runs on the path that is on show. */
export function busyTurn(conversation: Conversation): Turn | null {
  return shown(conversation).find(isBusy) ?? null;
}

/** Whether anything runs, on whichever path. */
export function isAnyBusy(conversation: Conversation): boolean {
  return conversation.turns.some(isBusy);
}

export function title(conversation: Conversation): string {
  const first = shown(conversation)[0]?.question.trim().replace(/\s+/g, " ") ?? "";
  if (first === "") return "New chat";
  return first.length > 60 ? `${first.slice(0, 59).trimEnd()}…` : first;
}

export function lastUsed(conversation: Conversation): number {
  return conversation.turns.reduce((latest, turn) => Math.max(latest, turn.sentAt), conversation.createdAt);
}

export function withTurn(conversation: Conversation, turn: Turn): Conversation {
  const others = conversation.turns.filter((other) => other.id !== turn.id);
  return { ...conversation, turns: [...others, turn].sort(inOrder) };
}

function inOrder(a: Turn, b: Turn): number {
  return a.askedAt - b.askedAt || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

/** A question that has no answer once more, under the same key: the gateway knows it should it have been accepted
    unheard. */
export function again(turn: Turn, tab: string, now: number): Turn {
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, revision: turn.revision + 1 };
}

/** The responses up to the one that can be continued; empty where none can. Behind one that failed it is the one that it
    was to continue. */
export function cutShort(turn: Turn): readonly Answer[] {
  if (turn.answer === null || isRunning(turn.answer)) return [];
  if (turn.answer.continuable) return chain(turn);
  const { status, text } = turn.answer;
  return status === "failed" || status === "lost" || (status !== "completed" && text === "") ? turn.before : [];
}

/** More of an answer that was cut short; unchanged where nothing can be continued. */
export function continuing(turn: Turn, tab: string, now: number): Turn {
  const before = cutShort(turn);
  if (before.length === 0) return turn;
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, attempt: turn.attempt + 1, revision: 0, answer: null, before };
}

/** A tab that continues an answer and one that asks for another one at the same time make two requests. */
export function idempotencyKey(turn: Turn): string {
  const key = `${turn.id}.${turn.attempt}${turn.trimmed ? ".trimmed" : ""}`;
  return turn.before.length === 0 ? key : `${key}.more`;
}

export interface Message {
  readonly role: "user" | "assistant";
  readonly content: string;
}

/** Says what became of a call. */
export interface CallOutput {
  readonly type: "function_call_output" | "custom_tool_call_output";
  readonly call_id: string;
  readonly output: string;
}

export interface Context {
  readonly input: string | readonly (Message | CallOutput)[];
  readonly previousResponseId: string | null;
}

// This page runs no tools: who goes on writing leaves the calls without a result, and the model is told so.
const NOT_RUN = "This tool was not run. The user went on without it.";

/** What is sent for a question: it continues the nearest earlier answer that has an end worth continuing. More of an answer
    that was cut short is asked for without any input. */
export function context(conversation: Conversation, turnId: string): Context {
  const turn = conversation.turns.find(({ id }) => id === turnId);
  const cut = turn?.before.at(-1);
  if (cut !== undefined) return { input: [], previousResponseId: cut.responseId };
  const previous = continued(conversation, turnId).at(-1)?.heard.at(-1) ?? null;
  const question = turn?.question ?? "";
  if (previous === null) return { input: question, previousResponseId: null };
  const open = calls(previous);
  if (open === null) return { input: wholeContext(conversation, turnId), previousResponseId: null };
  const outputs = open.map(({ kind, call }): CallOutput => ({
    type: kind === "function" ? "function_call_output" : "custom_tool_call_output",
    call_id: call,
    output: NOT_RUN,
  }));
  const input = outputs.length === 0 ? question : [...outputs, { role: "user" as const, content: question }];
  return { input, previousResponseId: previous.responseId };
}

/** Everything said so far, for when the server no longer knows the answer that the question continues. */
export function wholeContext(conversation: Conversation, turnId: string): Message[] {
  const messages: Message[] = [];
  for (const { question, heard } of continued(conversation, turnId)) {
    messages.push({ role: "user", content: question }, { role: "assistant", content: said(heard) });
  }
  const asked = conversation.turns.find((turn) => turn.id === turnId);
  return asked === undefined ? messages : [...messages, { role: "user", content: asked.question }];
}

function continued(conversation: Conversation, turnId: string): { question: string; heard: readonly Answer[] }[] {
  const turn = tree(conversation).byId.get(turnId);
  return (turn === undefined ? shown(conversation) : before(conversation, turn))
    .map(({ question, answer, before }) => ({ question, heard: answer !== null && isWhole(answer) ? [...before, answer] : before }))
    .filter(({ heard }) => heard.length > 0);
}

// A stopped answer without a word leaves nothing to go on from; a failed or lost one is not part of the dialogue.
function isWhole(answer: Answer): boolean {
  return answer.status === "completed" || ((answer.status === "incomplete" || answer.status === "cancelled") && answer.text !== "");
}

export function join(a: Conversation, b: Conversation): Conversation {
  const turns = new Map(a.turns.map((turn) => [turn.id, turn]));
  for (const turn of b.turns) {
    const mine = turns.get(turn.id);
    turns.set(turn.id, mine === undefined ? turn : joinTurn(mine, turn));
  }
  return { id: a.id, createdAt: Math.min(a.createdAt, b.createdAt), turns: [...turns.values()].sort(inOrder), chosen: joinChoices(a.chosen, b.chosen) };
}

// The latest choice holds; of two in one millisecond any fixed one will do.
function joinChoices(a: Conversation["chosen"], b: Conversation["chosen"]): Conversation["chosen"] {
  const joined: Record<string, Choice> = { ...a };
  for (const [parent, theirs] of Object.entries(b)) {
    const mine = joined[parent];
    if (mine === undefined || theirs.at > mine.at || (theirs.at === mine.at && theirs.turn > mine.turn)) joined[parent] = theirs;
  }
  return joined;
}

export function joinTurn(a: Turn, b: Turn): Turn {
  if (a.attempt !== b.attempt) return a.attempt > b.attempt ? a : b;
  const joined = isAhead(a, b) ? a : b;
  const other = joined === a ? b : a;
  const answer = joined.answer === null ? null : known(joined.answer, other);
  return { ...joined, stopWanted: a.stopWanted || b.stopWanted, answer, before: joined.before.map((each) => known(each, other)) };
}

function known(answer: Answer, other: Turn): Answer {
  const same = chain(other).find(({ responseId }) => responseId === answer.responseId);
  return same === undefined ? answer : further(answer, same);
}

// Any fixed order will do for the cases that differ by chance only (two tabs that retried at once), as long as every tab uses it.
function isAhead(a: Turn, b: Turn): boolean {
  if ((a.answer === null) !== (b.answer === null)) return a.answer !== null;
  const [mine, theirs] = [a.answer?.responseId ?? "", b.answer?.responseId ?? ""];
  if (mine !== theirs) return mine > theirs;
  if (a.revision !== b.revision) return a.revision > b.revision;
  return a.sentAt !== b.sentAt ? a.sentAt > b.sentAt : a.tab >= b.tab;
}

/** Whether `a` holds something besides progress that `b` lacks, so that writing `b` over it would lose it. */
export function knowsMore(a: Conversation, b: Conversation): boolean {
  const theirs = new Map(b.turns.map((turn) => [turn.id, turn]));
  if (Object.entries(a.chosen).some(([parent, { at }]) => at > (b.chosen[parent]?.at ?? 0))) return true;
  return a.turns.some((turn) => {
    const other = theirs.get(turn.id);
    return (
      other === undefined ||
      turn.attempt > other.attempt ||
      (turn.attempt === other.attempt && turn.revision > other.revision && other.answer === null) ||
      (turn.answer !== null && other.answer === null && turn.attempt === other.attempt)
    );
  });
}

/** What was stored may be of another version of this page or damaged: read it as data. */
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
    // An older version of this page kept one path: each turn follows the one before it.
    const turns = value.turns.map((turn, place) => readTurn(turn, value.turns[place - 1]?.id ?? null));
    return { ...value, turns, chosen: readChoices(value.chosen) };
  } catch {
    return null;
  }
}

// With what older versions of this page did not keep.
function readTurn(kept: Turn, last: string | null): Turn {
  const [parent, before]: unknown[] = [kept.parent, kept.before];
  return {
    ...kept,
    parent: parent === null || typeof parent === "string" ? parent : last,
    trimmed: (kept.trimmed as unknown) === true,
    answer: kept.answer === null ? null : readAnswer(kept.answer),
    before: Array.isArray(before) ? before.map((each) => readAnswer(each as Answer)) : [],
  };
}

function readChoices(kept: unknown): Conversation["chosen"] {
  if (typeof kept !== "object" || kept === null) return {};
  return Object.fromEntries(Object.entries(kept as Conversation["chosen"]).filter(([, choice]) => typeof choice?.turn === "string" && Number.isFinite(choice.at)));
}
