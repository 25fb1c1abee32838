/* A conversation as this browser keeps it. Every tab holds one, works on it alone and joins what others wrote:
   `join` is commutative, associative and idempotent, so it does not matter in which order tabs hear from each other.

   It is a tree: another answer to a question, or the question in other words, is a turn beside the first one (a
   version). So nothing that was said is ever replaced. One path through the tree is on show. Which versions are answers to
   one question is told by their words and files, so every device sees the same, also of what other clients asked. */

import { moreAdvanced, isRunning, type Answer } from "./answer";
import type { Attachment } from "./attachments";
import { latest, DEFAULT_SETTINGS, type StampedSettings, type Settings } from "./settings";
import { withoutMarks } from "./titles";
import { texts } from "./words";

/** next: it is sent when the answer before it has ended · sending: it is on its way · unsent: it was not accepted,
    `problem` says why · accepted: it has an answer · withdrawn: taken back into the composer, no longer shown. */
export type Phase = "next" | "sending" | "unsent" | "accepted" | "withdrawn";

/** A server that has no room now, and said until when (ms since the epoch). */
export interface Refusal {
  readonly status: number;
  readonly until: number;
}

export interface Problem {
  readonly words: string;
  /** Whether the same question could be accepted at another time. */
  readonly again: boolean;
  /** It is sent by itself when a connection is there. */
  readonly waits?: boolean;
  /** The server said when to come back. */
  readonly refused?: Refusal;
  readonly code: string;
}

export interface Turn {
  readonly id: string;
  /** The turn that it follows; null: none. */
  readonly parent: string | null;
  readonly question: string;
  /** What goes with the question. */
  readonly attachments: readonly Attachment[];
  /** The place in the conversation; `sentAt` is when the current attempt was sent. Both in ms. */
  readonly askedAt: number;
  readonly sentAt: number;
  readonly model: string | null;
  /** What it is asked with, so that each try of one attempt is the same request; null once it was accepted. */
  readonly settings: Settings | null;
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

/** What the reader calls it, and whether it stands first in the list. Of two, the later one holds. */
export interface Label {
  /** Empty while it has no name of its own. */
  readonly name: string;
  readonly pinned: boolean;
  readonly at: number;
}

export interface Conversation {
  readonly id: string;
  readonly createdAt: number;
  /** Its id on the server. Null: it is in this browser only, or the server has not been told of it yet. */
  readonly remote: string | null;
  readonly label: Label;
  /** When the server last saw a turn of it; 0 where that is not known. */
  readonly usedAt: number;
  /** Empty also where the server has them and they are not kept here. */
  readonly turns: readonly Turn[];
  /** By the turn that the versions follow ("": none), and by question (`seenAt`). Without a choice the newest version is
      shown. */
  readonly chosen: Readonly<Record<string, Choice>>;
  /** What following questions are asked with. */
  readonly settings: StampedSettings;
}

export const UNNAMED: Label = { name: "", pinned: false, at: 0 };

export function newConversation(id: string, now: number, settings: Settings = DEFAULT_SETTINGS): Conversation {
  return { id, createdAt: now, remote: null, label: UNNAMED, usedAt: 0, turns: [], chosen: {}, settings: { ...settings, at: now } };
}

export function newTurn(id: string, parent: string | null, question: string, model: string | null, tab: string, now: number): Turn {
  return {
    id,
    parent,
    question,
    attachments: [],
    askedAt: now,
    sentAt: now,
    model,
    settings: null,
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
export function visibleTurns(conversation: Conversation): readonly Turn[] {
  const { children } = tree(conversation);
  const path: Turn[] = [];
  const visited = new Set<string>(); // what was damaged in the store may follow itself
  for (let at = ROOT; !visited.has(at); ) {
    visited.add(at);
    const siblings = children.get(at) ?? [];
    const turn = siblings.find(({ id }) => id === conversation.chosen[at]?.turn) ?? siblings.at(-1);
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

/** The answers to the question of this turn, its own among them, the oldest first. */
export function answerVersions(conversation: Conversation, turn: Turn): readonly Turn[] {
  return versions(conversation, turn).filter((each) => isSameQuestion(each, turn));
}

/** One turn for each question that was asked in this place, in the order in which they were asked first: this turn for its
    own question, for another one the answer that was seen last. */
export function questionVersions(conversation: Conversation, turn: Turn): readonly Turn[] {
  const siblings = versions(conversation, turn);
  const first = siblings.filter((each, place) => siblings.findIndex((other) => isSameQuestion(each, other)) === place);
  return first.map((each) => (isSameQuestion(each, turn) ? turn : answerOnShow(conversation, siblings.filter((other) => isSameQuestion(each, other)))));
}

function isSameQuestion(a: Turn, b: Turn): boolean {
  const files = a.attachments.length === b.attachments.length && a.attachments.every(({ fileId }, place) => fileId === b.attachments[place]?.fileId);
  return files && a.question === b.question;
}

/** Of answers to one question, the oldest first. */
function answerOnShow(conversation: Conversation, answers: readonly Turn[]): Turn {
  const [oldest, newest] = [answers[0] as Turn, answers.at(-1) as Turn];
  return answers.find(({ id }) => id === conversation.chosen[answerChoiceKey(oldest)]?.turn) ?? newest;
}

/** Where `chosen` has the answer to a question that was seen last. `oldest`: the first one to it. No turn has such an id. */
function answerChoiceKey(oldest: Turn): string {
  return `:${oldest.id}`;
}

/** The turns before this one, the first one first. */
export function turnsBefore(conversation: Conversation, turn: Turn): readonly Turn[] {
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
export function withChoice(conversation: Conversation, turn: Turn, now: number): Conversation {
  const parent = tree(conversation).parents.get(turn.id) ?? ROOT;
  const at = Math.max(now, (conversation.chosen[parent]?.at ?? 0) + 1); // later than the choice that it follows
  const choice = { turn: turn.id, at };
  const oldest = answerVersions(conversation, turn)[0] ?? turn;
  return { ...conversation, chosen: { ...conversation.chosen, [parent]: choice, [answerChoiceKey(oldest)]: choice } };
}

/** From now on it is asked with these settings. */
export function withSettings(conversation: Conversation, settings: Settings, now: number): Conversation {
  return { ...conversation, settings: { ...settings, at: Math.max(now, conversation.settings.at + 1) } };
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
  let cached = trees.get(conversation);
  if (cached === undefined) trees.set(conversation, (cached = buildTree(conversation)));
  return cached;
}

function buildTree({ turns }: Conversation): Tree {
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
    const siblings = children.get(place);
    if (siblings === undefined) children.set(place, [turn]);
    else siblings.push(turn);
  }
  return { byId, parents, children };
}

export function isBusy(turn: Turn): boolean {
  return turn.phase === "sending" || (turn.phase === "accepted" && turn.answer !== null && isRunning(turn.answer));
}

/** What runs on the path that is on show. */
export function busyTurn(conversation: Conversation): Turn | null {
  return visibleTurns(conversation).find(isBusy) ?? null;
}

/** Whether anything runs, on whichever path. */
export function isAnyBusy(conversation: Conversation): boolean {
  return conversation.turns.some(isBusy);
}

/** Shows the path that leads to this turn. What follows it is shown as before. */
export function withPathTo(conversation: Conversation, turn: Turn, now: number): Conversation {
  return [...turnsBefore(conversation, turn), turn].reduce((current, each) => {
    const siblings = versions(current, each).filter(({ id }) => id !== each.id);
    const isVisible = siblings.length === 0 || visibleTurns(current).some(({ id }) => id === each.id);
    return isVisible ? current : withChoice(current, each, now);
  }, conversation);
}

export function title(conversation: Conversation): string {
  if (conversation.label.name !== "") return conversation.label.name;
  const first = visibleTurns(conversation)[0];
  return first === undefined ? texts().newChat : questionTitle(first.question);
}

/** Names are made with each drawing of the list, and a question may be long. */
const MAX_TITLE_SOURCE = 400;

/** What a chat that began with this question is called until it has a name. */
export function questionTitle(question: string): string {
  const line = withoutMarks(question.trim().slice(0, MAX_TITLE_SOURCE)).replace(/\s+/g, " ").trim();
  if (line === "") return texts().newChat;
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

export function lastUsed(conversation: Conversation): number {
  return conversation.turns.reduce((latest, turn) => Math.max(latest, turn.sentAt), Math.max(conversation.createdAt, conversation.usedAt));
}

/** Whether the server has all of it, so that it need not be kept here. */
export function isOnServer(conversation: Conversation): boolean {
  return conversation.remote !== null && conversation.turns.every((turn) => turn.phase === "withdrawn" || (turn.phase === "accepted" && !isBusy(turn)));
}

export function withTurn(conversation: Conversation, turn: Turn): Conversation {
  const others = conversation.turns.filter((other) => other.id !== turn.id);
  return { ...conversation, turns: [...others, turn].sort(compareTurns) };
}

function compareTurns(a: Turn, b: Turn): number {
  return a.askedAt - b.askedAt || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

/** A question that has no answer once more, under the same key: the gateway knows it should it have been accepted
    unheard. */
export function withResend(turn: Turn, tab: string, now: number): Turn {
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, revision: turn.revision + 1 };
}

/** The responses up to the one that can be continued; empty where none can. Behind one that failed it is the one that it
    was to continue. */
export function continuableChain(turn: Turn): readonly Answer[] {
  if (turn.answer === null || isRunning(turn.answer)) return [];
  if (turn.answer.continuable) return chain(turn);
  const { status, text } = turn.answer;
  return status === "failed" || status === "lost" || (status !== "completed" && text === "") ? turn.before : [];
}

/** More of an answer that was cut short; unchanged where nothing can be continued. */
export function withContinuation(turn: Turn, tab: string, now: number): Turn {
  const before = continuableChain(turn);
  if (before.length === 0) return turn;
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, attempt: turn.attempt + 1, revision: 0, answer: null, before };
}

/** A tab that continues an answer and one that asks for another one at the same time make two requests. */
export function idempotencyKey(turn: Turn): string {
  const key = `${turn.id}.${turn.attempt}${turn.trimmed ? ".trimmed" : ""}`;
  return turn.before.length === 0 ? key : `${key}.more`;
}

export function join(a: Conversation, b: Conversation): Conversation {
  const turns = new Map(a.turns.map((turn) => [turn.id, turn]));
  for (const turn of b.turns) {
    const mine = turns.get(turn.id);
    turns.set(turn.id, mine === undefined ? turn : joinTurn(mine, turn));
  }
  return {
    id: a.id,
    createdAt: Math.min(a.createdAt, b.createdAt),
    remote: joinRemotes(a.remote, b.remote),
    label: joinLabels(a.label, b.label),
    usedAt: Math.max(a.usedAt, b.usedAt),
    turns: [...turns.values()].sort(compareTurns),
    chosen: joinChoices(a.chosen, b.chosen),
    settings: latest(a.settings, b.settings),
  };
}

function joinRemotes(a: string | null, b: string | null): string | null {
  if (a === null || b === null) return a ?? b;
  return a < b ? a : b;
}

function joinLabels(a: Label, b: Label): Label {
  if (a.at !== b.at) return a.at > b.at ? a : b;
  return JSON.stringify([a.name, a.pinned]) >= JSON.stringify([b.name, b.pinned]) ? a : b;
}

// The latest choice holds; of two in one millisecond any fixed one will do.
function joinChoices(a: Conversation["chosen"], b: Conversation["chosen"]): Conversation["chosen"] {
  const choices: Record<string, Choice> = { ...a };
  for (const [parent, theirs] of Object.entries(b)) {
    const mine = choices[parent];
    if (mine === undefined || theirs.at > mine.at || (theirs.at === mine.at && theirs.turn > mine.turn)) choices[parent] = theirs;
  }
  return choices;
}

export function joinTurn(a: Turn, b: Turn): Turn {
  if (a.attempt !== b.attempt) return a.attempt > b.attempt ? a : b;
  const ahead = isAhead(a, b) ? a : b;
  const other = ahead === a ? b : a;
  const answer = ahead.answer === null ? null : mostAdvanced(ahead.answer, other);
  return { ...ahead, stopWanted: a.stopWanted || b.stopWanted, answer, before: ahead.before.map((each) => mostAdvanced(each, other)) };
}

function mostAdvanced(answer: Answer, other: Turn): Answer {
  const same = chain(other).find(({ responseId }) => responseId === answer.responseId);
  return same === undefined ? answer : moreAdvanced(answer, same);
}

// Any fixed order will do for the cases that differ by chance only (two tabs that retried at once), as long as every tab uses it.
function isAhead(a: Turn, b: Turn): boolean {
  if ((a.answer === null) !== (b.answer === null)) return a.answer !== null;
  const [mine, theirs] = [a.answer?.responseId ?? "", b.answer?.responseId ?? ""];
  if (mine !== theirs) return mine > theirs;
  if (a.revision !== b.revision) return a.revision > b.revision;
  return a.sentAt !== b.sentAt ? a.sentAt > b.sentAt : a.tab >= b.tab;
}

/** Whether `a` holds something besides progress that `b` lacks, so that writing `b` over it would lose it. What the server
    has, and was taken out of the store to make room, is nothing to lose. */
export function knowsMore(a: Conversation, b: Conversation): boolean {
  if ((a.remote !== null && b.remote === null) || a.label.at > b.label.at) return true;
  if (b.turns.length === 0 && isOnServer(a)) return false;
  const theirs = new Map(b.turns.map((turn) => [turn.id, turn]));
  if (a.settings.at > b.settings.at) return true;
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
