/* A conversation as this browser stores it. Each tab has a copy, changes it alone and joins the
   writes of other tabs: `join` is commutative, associative and idempotent, so the order of the
   writes does not matter.

   A conversation is a tree. Another answer to a question, or an edited question, is a sibling of
   the first turn (a version). So nothing is ever replaced. One path through the tree is visible.
   Versions with the same words and files are answers to one question, so every device groups them
   alike, also the turns of other clients. */

import { moreAdvanced, isRunning, type Answer } from "./answer";
import type { Attachment } from "./attachments";
import { latest, DEFAULT_SETTINGS, type StampedSettings, type Settings } from "./settings";
import { withoutMarks } from "./titles";
import { texts } from "./words";

/** next: it is sent when the answer before it has ended · sending: a request is running · unsent:
    it was not accepted, `problem` says why · accepted: it has an answer · withdrawn: it went back
    into the composer and is no longer shown. */
export type Phase = "next" | "sending" | "unsent" | "accepted" | "withdrawn";

/** The server has no capacity until this time (ms since the epoch). */
export interface Refusal {
  readonly status: number;
  readonly until: number;
}

export interface Problem {
  readonly words: string;
  /** Whether the same question could be accepted later. */
  readonly again: boolean;
  /** The question is sent automatically when there is a connection. */
  readonly waits?: boolean;
  /** Present where the server said when to try again. */
  readonly refused?: Refusal;
  readonly code: string;
}

export interface Turn {
  readonly id: string;
  /** The turn that it follows; null: none. */
  readonly parent: string | null;
  readonly question: string;
  /** The images and texts of the question. */
  readonly attachments: readonly Attachment[];
  /** `askedAt` gives the order in the conversation; `sentAt` is when the current attempt was sent.
      Both in ms. */
  readonly askedAt: number;
  readonly sentAt: number;
  readonly model: string | null;
  /** The settings of the request, so that each try of one attempt is the same request; null once it
      was accepted. */
  readonly settings: Settings | null;
  /** Counts the requested responses. Each continues those before it. */
  readonly attempt: number;
  /** Older messages may be left out where the model cannot read all. */
  readonly trimmed: boolean;
  /** Counts changes within one attempt before it has an answer. */
  readonly revision: number;
  readonly phase: Phase;
  readonly problem: Problem | null;
  readonly stopWanted: boolean;
  /** The tab that sends; another tab must not send the same question. */
  readonly tab: string;
  readonly answer: Answer | null;
  /** Responses that were cut short; each is continued by the next one, and the last of them by
      `answer`. */
  readonly before: readonly Answer[];
}

/** The version that a reader chose, and when. */
export interface Choice {
  readonly turn: string;
  readonly at: number;
}

/** The reader's name for a conversation, and whether it is pinned. Of two labels the later one
    applies. */
export interface Label {
  /** Empty: no name. */
  readonly name: string;
  readonly pinned: boolean;
  readonly at: number;
}

export interface Conversation {
  readonly id: string;
  readonly createdAt: number;
  /** Its id on the server. Null: it is in this browser only, or was not created on the server yet. */
  readonly remote: string | null;
  readonly label: Label;
  /** When the server last received a turn; 0: not known. */
  readonly usedAt: number;
  /** Also empty where the server has turns that this browser does not store. */
  readonly turns: readonly Turn[];
  /** By the turn that the versions follow ("": none), and by question (`answerChoiceKey`). Without
      a choice the newest version is shown. */
  readonly chosen: Readonly<Record<string, Choice>>;
  /** The settings of the next questions. */
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

/** The turns of the visible path, in order. */
export function visibleTurns(conversation: Conversation): readonly Turn[] {
  const { children } = tree(conversation);
  const path: Turn[] = [];
  const visited = new Set<string>(); // in a damaged record a turn may follow itself
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

/** One turn for each question at this place, in the order in which the questions were first asked:
    this turn for its own question, and the answer that was visible last for each other question. */
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

/** The key in `chosen` of the answer to a question that was visible last. `oldest`: the first
    answer to it. No turn has such an id. */
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
  const at = Math.max(now, (conversation.chosen[parent]?.at ?? 0) + 1); // later than the choice before it
  const choice = { turn: turn.id, at };
  const oldest = answerVersions(conversation, turn)[0] ?? turn;
  return { ...conversation, chosen: { ...conversation.chosen, [parent]: choice, [answerChoiceKey(oldest)]: choice } };
}

/** The conversation with these settings for the next questions. */
export function withSettings(conversation: Conversation, settings: Settings, now: number): Conversation {
  return { ...conversation, settings: { ...settings, at: Math.max(now, conversation.settings.at + 1) } };
}

const ROOT = "";

interface Tree {
  readonly byId: ReadonlyMap<string, Turn>;
  /** By turn: the turn that it follows; ROOT for none. */
  readonly parents: ReadonlyMap<string, string>;
  /** By the turn that they follow: the turns that are not withdrawn. */
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
    // A turn after a withdrawn question follows the turn before that question.
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

/** The running turn of the visible path. */
export function busyTurn(conversation: Conversation): Turn | null {
  return visibleTurns(conversation).find(isBusy) ?? null;
}

/** Whether a turn runs on any path. */
export function isAnyBusy(conversation: Conversation): boolean {
  return conversation.turns.some(isBusy);
}

/** Shows the path to this turn. The choices after it stay. */
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

/** Titles are computed each time the list is drawn, and a question may be long. */
const MAX_TITLE_SOURCE = 400;

/** The title of a chat with this first question, until it has a name. */
export function questionTitle(question: string): string {
  const line = withoutMarks(question.trim().slice(0, MAX_TITLE_SOURCE)).replace(/\s+/g, " ").trim();
  if (line === "") return texts().newChat;
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
}

export function lastUsed(conversation: Conversation): number {
  return conversation.turns.reduce((latest, turn) => Math.max(latest, turn.sentAt), Math.max(conversation.createdAt, conversation.usedAt));
}

/** Whether the server has all of it, so that this browser need not store it. */
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

/** A question without an answer, to be sent again under the same key. If the gateway accepted it
    before, it recognises the key. */
export function withResend(turn: Turn, tab: string, now: number): Turn {
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, revision: turn.revision + 1 };
}

/** The responses up to the one that can be continued; empty where none can. If the last
    continuation failed, these are the responses before it. */
export function continuableChain(turn: Turn): readonly Answer[] {
  if (turn.answer === null || isRunning(turn.answer)) return [];
  if (turn.answer.continuable) return chain(turn);
  const { status, text } = turn.answer;
  return status === "failed" || status === "lost" || (status !== "completed" && text === "") ? turn.before : [];
}

/** The turn with a request to continue its answer; unchanged where nothing can be continued. */
export function withContinuation(turn: Turn, tab: string, now: number): Turn {
  const before = continuableChain(turn);
  if (before.length === 0) return turn;
  return { ...turn, phase: "sending", problem: null, stopWanted: false, tab, sentAt: now, attempt: turn.attempt + 1, revision: 0, answer: null, before };
}

/** A continuation and a new attempt have different keys, so two tabs that start one each make two
    requests. */
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

// The latest choice applies. For two in one millisecond any fixed order is enough.
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

// Where two tabs retried at once, any fixed order is enough, as long as every tab uses it.
function isAhead(a: Turn, b: Turn): boolean {
  if ((a.answer === null) !== (b.answer === null)) return a.answer !== null;
  const [mine, theirs] = [a.answer?.responseId ?? "", b.answer?.responseId ?? ""];
  if (mine !== theirs) return mine > theirs;
  if (a.revision !== b.revision) return a.revision > b.revision;
  return a.sentAt !== b.sentAt ? a.sentAt > b.sentAt : a.tab >= b.tab;
}

/** Whether `a` has something that `b` lacks, apart from progress of an answer. Writing `b` over `a`
    would lose it. Turns that the server has, and that were removed to free space, do not count. */
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
