/* The controller runs every conversation of this tab: it sends questions, follows answers, stops and retries them, and
   shares its state with the other tabs through the store. It draws nothing; a view listens to `onChange`.

   A question is written to the store before it is sent, with an idempotency key. So a reload, a lost answer to the
   request or a retry never asks it twice. */

import { isRunning, newAnswer, type Answer } from "./core/answer";
import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import type { Incoming, Place } from "./core/protocol";
import { REPLAY_MS, Watchlist, type WatchCommand } from "./core/watchlist";
import { againWords, askProblem, continueProblem, isPassing } from "./core/messages";
import { ApiError, UNREACHABLE, type Ask, type Engine } from "./edge/api";
import type { Store } from "./edge/store";

export interface ControllerParts {
  store: Store;
  api: { ask(ask: Ask): Promise<string>; cancel(responseId: string): Promise<void>; engine(): Promise<Engine | null> };
  watchSocket: { send(message: object): void; replace(): void; draining(afterMs: number): void; expiring(): void };
  now(): number;
  newId(): string;
  /** Resolves after `ms`; a test makes it pass at once. */
  pause(ms: number): Promise<void>;
  later(run: () => void, ms: number): () => void;
  /** Whether the browser says that it has a network. */
  online(): boolean;
  /** Names this tab, also after its reload. */
  tab: string;
  warn(words: string): void;
}

const ASK_TRIES = 4;
const WRITE_EVERY_MS = 300;
const ENGINE_EVERY_MS = 2500;
const SILENCE_CHECK_MS = 5000;
/** After this time a question that another tab is still sending counts as abandoned by that tab. */
const ABANDONED_MS = 60_000;
/** So long a question that can be sent is left to the tab in which it was asked. Its key is the same in each. */
const TAKE_OVER_MS = 5_000;
const TRY_EVERY_MS = 15_000;

export class Controller {
  private readonly held = new Map<string, Conversation>();
  private readonly watchlist = new Watchlist();
  /** response id → where it is shown; for every response on the watchlist. */
  private readonly places = new Map<string, { conversation: string; turn: string }>();
  /** Conversations that the store has or had: one that vanished from it was removed by another tab. */
  private readonly stored = new Set<string>();
  private readonly unwritten = new Set<string>();
  /** turn id → why its question waits to be sent again; empty while none does. */
  private readonly refused = new Map<string, string>();
  private writeSoon = false;
  private started = false;
  private owner: string | null = null;
  private engineAsked = false;
  /** null until known, and while no turn waits for an answer. */
  engine: Engine | null = null;
  /** Nothing more can be kept: shown to the reader once. */
  storageFull = false;
  onChange: (conversationId: string) => void = () => undefined;

  constructor(private readonly parts: ControllerParts) {}

  /** What this browser keeps for a user (null: no user), to be shown before anything is asked of the network. What is
      shown of another one goes. */
  load(owner: string | null): void {
    this.flush();
    // What was asked before it was known who asks is theirs.
    const unowned = this.owner === null ? [...this.held.values()] : [];
    if (unowned.length === 0) for (const id of [...this.held.keys()]) this.drop(id);
    this.owner = owner;
    this.parts.store.use(owner);
    for (const { id } of unowned) this.write(id);
    for (const conversation of this.parts.store.all()) {
      this.stored.add(conversation.id);
      this.put(conversation);
    }
    if (this.started) this.pickUpAll();
  }

  start(): void {
    this.started = true;
    this.parts.store.onChange((id, conversation) => this.heard(id, conversation));
    this.pickUpAll();
    const checkSilence = (): void => {
      if (this.watchlist.isSilent(this.parts.now())) this.parts.watchSocket.replace();
      this.parts.later(checkSilence, SILENCE_CHECK_MS);
    };
    this.parts.later(checkSilence, SILENCE_CHECK_MS);
  }

  /** Newest first; those without a question yet are not listed. */
  list(): Conversation[] {
    return [...this.held.values()]
      .filter((conversation) => conversations.shown(conversation).length > 0)
      .sort((a, b) => conversations.lastUsed(b) - conversations.lastUsed(a));
  }

  get(id: string): Conversation | null {
    return this.held.get(id) ?? null;
  }

  /** Asks in the given conversation or in a new one, whose id is returned. What comes while an answer runs is sent when
      that has ended. */
  ask(conversationId: string | null, question: string, model: string | null): string {
    const now = this.parts.now();
    const known = conversationId === null ? undefined : this.held.get(conversationId);
    const conversation = known ?? conversations.newConversation(this.parts.newId(), now);
    const last = conversations.shown(conversation).at(-1) ?? null;
    const turn = conversations.newTurn(this.parts.newId(), last?.id ?? null, question, model, this.parts.tab, now);
    const waits = last !== null && (conversations.isBusy(last) || last.phase === "next");
    this.put(conversations.withTurn(conversation, waits ? { ...turn, phase: "next" } : turn));
    this.write(conversation.id);
    if (!waits) void this.post(conversation.id, turn.id);
    return conversation.id;
  }

  /** Asks once more. Where there is an answer, it is kept, and the new one is a version beside it. */
  retry(conversationId: string, turnId: string): void {
    const turn = this.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn)) return;
    if (turn.answer !== null) this.beside(conversationId, turn, {});
    else this.sendAgain(conversationId, turn);
  }

  /** Asks in other words; what was asked before is kept as a version beside it. */
  edit(conversationId: string, turnId: string, question: string): void {
    const turn = this.turn(conversationId, turnId);
    if (turn !== null) this.beside(conversationId, turn, { question });
  }

  /** Asks once more, without the messages that are too many for the model. */
  trim(conversationId: string, turnId: string): void {
    const turn = this.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn)) return;
    if (turn.answer !== null) this.beside(conversationId, turn, { trimmed: true });
    else this.sendAgain(conversationId, { ...turn, trimmed: true });
  }

  /** Shows this version. */
  choose(conversationId: string, turnId: string): void {
    const [conversation, turn] = [this.held.get(conversationId), this.turn(conversationId, turnId)];
    if (conversation === undefined || turn === null) return;
    this.put(conversations.choosing(conversation, turn, this.parts.now()));
    this.write(conversationId);
  }

  /** More of an answer that was cut short, as a part of the same answer. */
  more(conversationId: string, turnId: string): void {
    const turn = this.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn) || conversations.cutShort(turn).length === 0) return;
    this.change(conversationId, conversations.continuing(turn, this.parts.tab, this.parts.now()));
    this.write(conversationId);
    void this.post(conversationId, turnId);
  }

  /** Takes a question that was not accepted back; returns it for the composer. */
  withdraw(conversationId: string, turnId: string): string {
    const turn = this.turn(conversationId, turnId);
    if (turn === null || (turn.phase !== "unsent" && turn.phase !== "next") || turn.before.length > 0) return "";
    this.change(conversationId, { ...turn, phase: "withdrawn", revision: turn.revision + 1 });
    this.write(conversationId);
    this.sendNext(conversationId);
    return turn.question;
  }

  stop(conversationId: string, turnId: string): void {
    const turn = this.turn(conversationId, turnId);
    if (turn === null || !conversations.isBusy(turn)) return;
    this.change(conversationId, { ...turn, stopWanted: true });
    this.write(conversationId);
    // Without an answer there is nothing to cancel yet: `post` cancels once the question was accepted.
    if (turn.answer !== null) void this.cancel(conversationId, turnId, turn.answer.responseId);
  }

  private beside(conversationId: string, turn: Turn, changes: Partial<Turn>): void {
    const conversation = this.held.get(conversationId);
    if (conversation === undefined) return;
    const now = this.parts.now();
    const made = { ...conversations.newTurn(this.parts.newId(), turn.parent, turn.question, turn.model, this.parts.tab, now), trimmed: turn.trimmed, ...changes };
    this.put(conversations.choosing(conversations.withTurn(conversation, made), made, now));
    this.write(conversationId);
    void this.post(conversationId, made.id);
  }

  private sendAgain(conversationId: string, turn: Turn): void {
    this.change(conversationId, conversations.again(turn, this.parts.tab, this.parts.now()));
    this.write(conversationId);
    void this.post(conversationId, turn.id);
  }

  remove(conversationId: string): Conversation | null {
    const conversation = this.held.get(conversationId) ?? null;
    this.drop(conversationId);
    this.parts.store.remove(conversationId);
    return conversation;
  }

  /** Undoes `remove`. */
  restore(conversation: Conversation): void {
    this.put(conversation);
    this.write(conversation.id);
    this.pickUpIn(conversation);
  }

  socketOpened(): void {
    this.send(this.watchlist.opened(this.parts.now()));
    if (this.catchingUp) this.parts.later(() => this.redraw(), REPLAY_MS);
    this.redraw();
    for (const conversation of [...this.held.values()]) for (const turn of conversation.turns) this.sendWaiting(conversation.id, turn);
  }

  /** Whether what came while there was no connection is still on its way. */
  get catchingUp(): boolean {
    return this.watchlist.isCatchingUp(this.parts.now());
  }

  private redraw(): void {
    for (const id of this.held.keys()) this.onChange(id);
  }

  // A connection is there, so the user is signed in.
  private sendWaiting(conversationId: string, turn: Turn): void {
    if (turn.phase !== "unsent" || turn.problem?.waits !== true) return;
    this.mineFirst(turn, () => {
      const now = this.turn(conversationId, turn.id);
      if (now?.phase === "unsent" && now.problem?.waits === true) this.sendAgain(conversationId, now);
    });
  }

  /** Sends what waited for the end of an answer. */
  private sendNext(conversationId: string): void {
    for (const turn of this.held.get(conversationId)?.turns ?? []) {
      if (turn.phase === "next" && this.canBeSent(conversationId, turn.id)) {
        this.mineFirst(turn, () => {
          const now = this.turn(conversationId, turn.id);
          if (now !== null && this.canBeSent(conversationId, turn.id)) this.sendAgain(conversationId, now);
        });
      }
    }
  }

  private canBeSent(conversationId: string, turnId: string): boolean {
    const [conversation, turn] = [this.held.get(conversationId), this.turn(conversationId, turnId)];
    if (conversation === undefined || turn?.phase !== "next") return false;
    const last = conversations.before(conversation, turn).at(-1);
    return last === undefined || (last.phase === "accepted" && !conversations.isBusy(last));
  }

  private mineFirst(turn: Turn, send: () => void): void {
    if (turn.tab === this.parts.tab) send();
    else this.parts.later(send, TAKE_OVER_MS);
  }

  socketClosed(): void {
    this.watchlist.closed();
  }

  /** Null: it could not be read. */
  socketMessage(message: Incoming | null): void {
    if (message === null) return this.parts.warn("a message on the watch socket could not be read");
    if (message.kind === "draining") return this.parts.watchSocket.draining(message.afterMs);
    if (message.kind === "expiring") return this.parts.watchSocket.expiring();
    if (message.kind === "renewed") return;
    const effects = this.watchlist.receive(message, this.parts.now());
    for (const words of effects.warnings) this.parts.warn(words);
    this.send(effects.send);
    for (const answer of effects.changed) this.advanced(answer);
    for (const responseId of effects.moved) this.moved(responseId);
    if (effects.reconnect) this.parts.watchSocket.replace();
  }

  /** Where the request of a response stands in the queue; null once it has begun, and while that is not known. */
  placeInQueue(responseId: string): Place | null {
    return this.watchlist.place(responseId);
  }

  /** Why a question waits to be sent again; null where none was refused. */
  refusal(turnId: string): string | null {
    return this.refused.get(turnId) ?? null;
  }

  /** Writes what is not yet written; also called when the page goes away. */
  flush(): void {
    for (const id of [...this.unwritten]) this.write(id);
  }

  private pickUpAll(): void {
    for (const conversation of [...this.held.values()]) this.pickUpIn(conversation);
  }

  private pickUpIn(conversation: Conversation): void {
    for (const turn of conversation.turns) this.pickUp(conversation.id, turn);
    this.sendNext(conversation.id);
  }

  private pickUp(conversationId: string, turn: Turn): void {
    if (turn.answer !== null && isRunning(turn.answer)) this.follow(conversationId, turn, false);
    if (turn.phase !== "sending") return;
    if (turn.tab === this.parts.tab) void this.post(conversationId, turn.id);
    else if (this.parts.now() - turn.sentAt > ABANDONED_MS) {
      this.fail(conversationId, turn, { code: "abandoned", again: true, words: "The page was closed before the question was accepted." });
    }
  }

  private async post(conversationId: string, turnId: string): Promise<void> {
    this.watchEngine();
    for (let tries = 1; ; tries += 1) {
      const turn = this.turn(conversationId, turnId);
      const conversation = this.held.get(conversationId);
      if (turn === null || conversation === undefined || turn.phase !== "sending") return;
      try {
        this.accepted(conversationId, turn, await this.submit(conversation, turn));
        return;
      } catch (error) {
        const { status, fault, retryAfterMs } =
          error instanceof ApiError ? error : { status: 500, fault: { code: "page_error", message: String(error) }, retryAfterMs: null };
        const offline = status === 0 && !this.parts.online();
        if (!isPassing(status) || offline || tries >= ASK_TRIES || (retryAfterMs ?? 0) > 10_000) {
          this.fail(conversationId, turn, (turn.before.length > 0 ? continueProblem : askProblem)(status, fault, retryAfterMs));
          return;
        }
        const wait = retryAfterMs ?? 400 * 2 ** tries;
        const words = againWords(status, wait);
        if (words !== null) this.refused.set(turnId, words);
        this.onChange(conversationId);
        await this.parts.pause(wait);
        this.refused.delete(turnId);
        this.onChange(conversationId);
      }
    }
  }

  private async submit(conversation: Conversation, turn: Turn): Promise<string> {
    const context = conversations.context(conversation, turn.id);
    const key = conversations.idempotencyKey(turn);
    const ask = { model: turn.model, key, trimmed: turn.trimmed, metadata: { conversation: conversation.id, turn: turn.id } };
    try {
      return await this.parts.api.ask({ ...ask, ...context });
    } catch (error) {
      // The log may have forgotten the answer that this question continues; this browser has not. Its text alone, as a
      // message, would be answered and not gone on with.
      if (context.previousResponseId === null || turn.before.length > 0 || !(error instanceof ApiError) || !isForgotten(error)) throw error;
      const input = conversations.wholeContext(conversation, turn.id);
      return this.parts.api.ask({ ...ask, key: `${key}.whole`, input, previousResponseId: null });
    }
  }

  private accepted(conversationId: string, sent: Turn, responseId: string): void {
    const turn = this.turn(conversationId, sent.id);
    if (turn === null || turn.attempt !== sent.attempt) return;
    const accepted: Turn = { ...turn, phase: "accepted", problem: null, answer: turn.answer ?? newAnswer(responseId) };
    this.change(conversationId, accepted);
    this.write(conversationId);
    this.follow(conversationId, accepted, true);
    if (accepted.stopWanted) void this.cancel(conversationId, turn.id, responseId);
  }

  private fail(conversationId: string, turn: Turn, problem: conversations.Problem): void {
    const unsent: Turn = { ...turn, phase: "unsent", revision: turn.revision + 1, stopWanted: false, problem };
    this.change(conversationId, unsent);
    this.write(conversationId);
    // A user who is not signed in is asked to; that the server can be reached again may be told by no event.
    if (problem.waits === true && problem.code === UNREACHABLE) this.parts.later(() => this.sendWaiting(conversationId, unsent), TRY_EVERY_MS);
  }

  private async cancel(conversationId: string, turnId: string, responseId: string): Promise<void> {
    try {
      await this.parts.api.cancel(responseId);
    } catch (error) {
      const turn = this.turn(conversationId, turnId);
      // An answer that has just ended by itself cannot be stopped, and need not be.
      if (turn === null || turn.answer === null || !isRunning(turn.answer)) return;
      this.change(conversationId, { ...turn, stopWanted: false });
      this.parts.warn(`the answer could not be stopped: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  private follow(conversationId: string, turn: Turn, asked: boolean): void {
    if (turn.answer === null || this.places.has(turn.answer.responseId)) return;
    this.places.set(turn.answer.responseId, { conversation: conversationId, turn: turn.id });
    this.send(this.watchlist.follow(turn.answer, asked, this.parts.now()));
    this.watchEngine();
  }

  private unfollow(responseId: string): void {
    if (this.places.delete(responseId)) this.send(this.watchlist.unfollow(responseId));
  }

  private advanced(answer: Answer): void {
    const place = this.places.get(answer.responseId);
    if (!isRunning(answer)) this.places.delete(answer.responseId);
    const turn = place === undefined ? null : this.turn(place.conversation, place.turn);
    if (place === undefined || turn?.answer?.responseId !== answer.responseId) return;
    this.change(place.conversation, { ...turn, answer, stopWanted: turn.stopWanted && isRunning(answer) });
    if (isRunning(answer)) this.writeLater(place.conversation);
    else {
      this.write(place.conversation);
      this.sendNext(place.conversation);
    }
  }

  private moved(responseId: string): void {
    const place = this.places.get(responseId);
    if (place !== undefined) this.onChange(place.conversation);
  }

  private heard(id: string, theirs: Conversation | null): void {
    if (theirs === null) {
      this.drop(id);
      return;
    }
    this.stored.add(id);
    const mine = this.held.get(id);
    const joined = mine === undefined ? theirs : conversations.join(mine, theirs);
    this.put(joined);
    for (const turn of joined.turns) {
      const before = mine?.turns.find((other) => other.id === turn.id)?.answer ?? null;
      if (before !== null && before.responseId !== turn.answer?.responseId) this.unfollow(before.responseId);
      if (turn.answer === null) continue;
      if (this.places.has(turn.answer.responseId)) {
        this.watchlist.advance(turn.answer);
        if (!isRunning(turn.answer)) this.unfollow(turn.answer.responseId);
      } else if (isRunning(turn.answer)) this.follow(id, turn, false);
    }
    if (conversations.knowsMore(joined, theirs)) this.writeLater(id);
    this.sendNext(id);
  }

  private drop(id: string): void {
    for (const turn of this.held.get(id)?.turns ?? []) {
      if (turn.answer !== null) this.unfollow(turn.answer.responseId);
    }
    this.held.delete(id);
    this.stored.delete(id);
    this.unwritten.delete(id);
    this.onChange(id);
  }

  private turn(conversationId: string, turnId: string): Turn | null {
    return this.held.get(conversationId)?.turns.find((turn) => turn.id === turnId) ?? null;
  }

  private change(conversationId: string, turn: Turn): void {
    const conversation = this.held.get(conversationId);
    if (conversation !== undefined) this.put(conversations.withTurn(conversation, turn));
  }

  private put(conversation: Conversation): void {
    this.held.set(conversation.id, conversation);
    this.onChange(conversation.id);
  }

  private writeLater(id: string): void {
    this.unwritten.add(id);
    if (this.writeSoon) return;
    this.writeSoon = true;
    this.parts.later(() => {
      this.writeSoon = false;
      this.flush();
    }, WRITE_EVERY_MS);
  }

  // No await between read and write: a write of another tab just before is not lost.
  private write(id: string): void {
    this.unwritten.delete(id);
    const mine = this.held.get(id);
    if (mine === undefined) return;
    const theirs = this.parts.store.read(id);
    if (theirs === null && this.stored.has(id)) {
      this.drop(id);
      return;
    }
    const good = this.parts.store.write(theirs === null ? mine : conversations.join(mine, theirs));
    if (good) this.stored.add(id);
    else if (!this.storageFull) {
      this.storageFull = true;
      this.onChange(id);
    }
  }

  private send(commands: WatchCommand[]): void {
    for (const command of commands) this.parts.watchSocket.send(command);
  }

  // Polled only while a turn waits: the state of the engine explains the wait.
  private watchEngine(): void {
    if (this.engineAsked) return;
    this.engineAsked = true;
    void this.askEngine();
  }

  private async askEngine(): Promise<void> {
    const engine = await this.parts.api.engine().catch(() => null);
    const waiting = [...this.held.values()].filter((conversation) => conversation.turns.some(isWaiting));
    this.engine = waiting.length === 0 ? null : engine;
    for (const conversation of waiting) this.onChange(conversation.id);
    if (waiting.length === 0) this.engineAsked = false;
    else this.parts.later(() => void this.askEngine(), ENGINE_EVERY_MS);
  }
}

export function isWaiting(turn: Turn): boolean {
  return turn.phase === "sending" || turn.answer?.status === "queued";
}

function isForgotten(error: ApiError): boolean {
  return error.fault.code === "previous_response_not_found" || error.fault.code === "history_lost";
}
