/* The controller runs every conversation of this tab: it sends questions, follows answers, stops
   and retries them, and shares its state with the other tabs through the store. It draws nothing; a
   view listens to `onChange`.

   A question is stored before it is sent, with an idempotency key. So a reload, a lost reply or a
   retry never sends it twice. */

import { isRunning, newAnswer, type Answer } from "./core/answer";
import { isExpired, toMetadata, type Attachment } from "./core/attachments";
import * as conversations from "./core/conversation";
import type { Conversation, Turn } from "./core/conversation";
import { contextOf, wholeContext } from "./core/context";
import type { FeedEvent } from "./core/feed";
import type { Incoming, Place } from "./core/protocol";
import { REPLAY_MS, Watchlist, type WatchCommand } from "./core/watchlist";
import { askProblem, continueProblem, expiredProblem, isTransient, isRefusal, needsSignIn, signInProblem, LOCKED } from "./core/messages";
import { DEFAULT_SETTINGS, type Settings } from "./core/settings";
import { texts } from "./core/words";
import { ApiError, UNREACHABLE, type Ask, type Engine } from "./edge/api";
import type { Store } from "./edge/store";
import { EngineWatch } from "./engineWatch";
import { ConversationCache } from "./conversationCache";

export interface ControllerParts {
  store: Store;
  api: { ask(ask: Ask): Promise<string>; cancel(responseId: string): Promise<void>; engine(): Promise<Engine | null> };
  watchSocket: { send(message: object): void; replace(): void; draining(afterMs: number): void; expiring(): void };
  now(): number;
  newId(): string;
  /** Resolves after `ms`. */
  pause(ms: number): Promise<void>;
  later(run: () => void, ms: number): () => void;
  /** Whether the browser reports a network. */
  online(): boolean;
  /** Creates the conversation of a question on the server, if needed, and returns its id there;
      null: it stays in this browser. Throws ApiError. */
  ensureRemote(conversation: Conversation): Promise<string | null>;
  /** An answer in this conversation has ended. */
  onAnswerEnd(conversationId: string, turn: Turn): void;
  /** Events of the feed. */
  feed(events: readonly FeedEvent[]): void;
  /** The id of this tab; it survives a reload. */
  tab: string;
  warn(words: string): void;
}

const ASK_TRIES = 4;
/** The longest wait after which a refused question is sent again automatically. */
const LONGEST_WAIT_MS = 10_000;
const SILENCE_CHECK_MS = 5000;
/** After this time, a question that another tab is still sending counts as abandoned. */
const ABANDONED_MS = 60_000;
/** The time for which a question is left to the tab in which it was asked. Then another tab sends
    it, with the same key. */
const TAKE_OVER_MS = 5_000;
const TRY_EVERY_MS = 15_000;

export class Controller {
  private readonly cache: ConversationCache;
  private readonly engineWatch: EngineWatch;
  private readonly watchlist = new Watchlist();
  /** response id → its turn; for every response on the watchlist. */
  private readonly places = new Map<string, { conversation: string; turn: string }>();
  /** turn id → the refusal after which its question waits to be sent again. */
  private readonly refusals = new Map<string, conversations.Refusal>();
  private started = false;
  /** The models that the server offers; null: not known yet. */
  models: readonly string[] | null = null;
  onChange: (conversationId: string) => void = () => undefined;

  constructor(private readonly parts: ControllerParts) {
    const later = (run: () => void, ms: number): (() => void) => parts.later(run, ms);
    this.cache = new ConversationCache({ store: parts.store, later, onChange: (id) => this.onChange(id), onDrop: ({ turns }) => this.unfollowAll(turns) });
    this.engineWatch = new EngineWatch({
      fetchEngine: () => parts.api.engine(),
      later,
      hasWaitingQuestion: () => this.waiting().length > 0,
      onState: () => {
        for (const { id } of this.waiting()) this.onChange(id);
      },
    });
  }

  /** Loads what this browser stores for a user (null: what was asked without one), before any
      request. The data of another user is dropped. */
  load(owner: string | null): void {
    // A reply to this tab may never arrive under the former user. When that user is back, any tab
    // sends the question again, with the same key.
    for (const { id, turns } of this.all()) {
      for (const turn of turns) if (turn.phase === "sending" && turn.tab === this.parts.tab) this.fail(id, turn, signInProblem(this.parts.store.recipient));
    }
    this.cache.load(owner);
    if (this.started) this.resumeAll();
  }

  start(): void {
    this.started = true;
    this.cache.listen((id, conversation) => this.merge(id, conversation));
    this.resumeAll();
    const checkSilence = (): void => {
      if (this.watchlist.isSilent(this.parts.now())) this.parts.watchSocket.replace();
      this.parts.later(checkSilence, SILENCE_CHECK_MS);
    };
    this.parts.later(checkSilence, SILENCE_CHECK_MS);
  }

  /** The state of the engine; null: not known, or no turn waits for an answer. */
  get engine(): Engine | null {
    return this.engineWatch.engine;
  }

  /** Whether a write to the storage failed since the last call. */
  popStorageFull(): boolean {
    return this.cache.popFull();
  }

  /** The conversations with a question, the newest first. */
  list(): Conversation[] {
    return this.all()
      .filter((conversation) => conversation.remote !== null || conversations.visibleTurns(conversation).length > 0)
      .sort((a, b) => conversations.lastUsed(b) - conversations.lastUsed(a));
  }

  get(id: string): Conversation | null {
    return this.cache.get(id);
  }

  all(): Conversation[] {
    return this.cache.all();
  }

  /** Merges the server's copy of a conversation. */
  absorb(conversation: Conversation): void {
    this.merge(conversation.id, conversation);
    this.cache.writeLater(conversation.id);
  }

  /** The settings of the next question. In a new conversation: the defaults, with the model that
      was used last. */
  settings(conversationId: string | null): Settings {
    const conversation = conversationId === null ? null : this.get(conversationId);
    return this.withOfferedModel(conversation?.settings ?? { ...DEFAULT_SETTINGS, model: this.list()[0]?.settings.model ?? null });
  }

  set(conversationId: string, settings: Settings): void {
    const conversation = this.get(conversationId);
    if (conversation === null) return;
    this.cache.put(conversations.withSettings(conversation, settings, this.parts.now()));
    this.cache.write(conversationId);
  }

  // A model that the server no longer offers is replaced by the default one.
  private withOfferedModel({ model, instructions, temperature, length }: Settings): Settings {
    const isGone = model !== null && this.models !== null && !this.models.includes(model);
    return { model: isGone ? null : model, instructions, temperature, length };
  }

  /** Asks in a conversation (null: in a new one, with `initialSettings`; null: the defaults) and
      returns its id. While an answer runs, the question waits until that answer has ended. */
  ask(conversationId: string | null, question: string, initialSettings: Settings | null, attachments: readonly Attachment[] = []): string {
    const now = this.parts.now();
    const existing = conversationId === null ? null : this.get(conversationId);
    const conversation = existing ?? conversations.newConversation(this.parts.newId(), now, initialSettings ?? DEFAULT_SETTINGS);
    const last = conversations.visibleTurns(conversation).at(-1) ?? null;
    const settings = this.withOfferedModel(conversation.settings);
    const turn = { ...conversations.newTurn(this.parts.newId(), last?.id ?? null, question, settings.model, this.parts.tab, now), settings, attachments };
    const waits = last !== null && (conversations.isBusy(last) || last.phase === "next");
    this.cache.put(conversations.withTurn(conversation, waits ? { ...turn, phase: "next" } : turn));
    this.cache.write(conversation.id);
    if (!waits) void this.post(conversation.id, turn.id);
    return conversation.id;
  }

  /** Asks again. An existing answer stays, and the new one is another version. */
  retry(conversationId: string, turnId: string): void {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn)) return;
    if (turn.answer !== null) this.addVersion(conversationId, turn, {});
    else this.sendAgain(conversationId, turn);
  }

  /** Asks an edited question. The former question stays as another version. */
  edit(conversationId: string, turnId: string, question: string): void {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn !== null) this.addVersion(conversationId, turn, { question });
  }

  /** Asks again, without the oldest messages where the model cannot read all. */
  trim(conversationId: string, turnId: string): void {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn)) return;
    if (turn.answer !== null) this.addVersion(conversationId, turn, { trimmed: true });
    else this.sendAgain(conversationId, { ...turn, trimmed: true });
  }

  /** Shows this version. */
  choose(conversationId: string, turnId: string): void {
    const [conversation, turn] = [this.get(conversationId), this.cache.turn(conversationId, turnId)];
    if (conversation === null || turn === null) return;
    this.cache.put(conversations.withChoice(conversation, turn, this.parts.now()));
    this.cache.write(conversationId);
  }

  /** Continues an answer that was cut short. */
  more(conversationId: string, turnId: string): void {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn === null || conversations.isBusy(turn) || conversations.continuableChain(turn).length === 0) return;
    const settings = this.settings(conversationId);
    this.cache.change(conversationId, { ...conversations.withContinuation(turn, this.parts.tab, this.parts.now()), settings, model: settings.model });
    this.cache.write(conversationId);
    void this.post(conversationId, turnId);
  }

  /** Withdraws a question that was not accepted, and returns its text for the composer. */
  withdraw(conversationId: string, turnId: string): string {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn === null || (turn.phase !== "unsent" && turn.phase !== "next") || turn.before.length > 0) return "";
    this.cache.change(conversationId, { ...turn, phase: "withdrawn", revision: turn.revision + 1 });
    this.cache.write(conversationId);
    this.sendNext(conversationId);
    return turn.question;
  }

  stop(conversationId: string, turnId: string): void {
    const turn = this.cache.turn(conversationId, turnId);
    if (turn === null || !conversations.isBusy(turn)) return;
    this.cache.change(conversationId, { ...turn, stopWanted: true });
    this.cache.write(conversationId);
    // Without an answer there is nothing to cancel yet: `onAccepted` cancels when the question was
    // accepted.
    if (turn.answer !== null) void this.cancel(conversationId, turnId, turn.answer.responseId);
  }

  private addVersion(conversationId: string, turn: Turn, changes: Partial<Turn>): void {
    const conversation = this.get(conversationId);
    if (conversation === null) return;
    const now = this.parts.now();
    const settings = this.withOfferedModel(conversation.settings);
    const base = conversations.newTurn(this.parts.newId(), turn.parent, turn.question, settings.model, this.parts.tab, now);
    const version = { ...base, settings, attachments: turn.attachments, trimmed: turn.trimmed, ...changes };
    this.cache.put(conversations.withChoice(conversations.withTurn(conversation, version), version, now));
    this.cache.write(conversationId);
    void this.post(conversationId, version.id);
  }

  private sendAgain(conversationId: string, turn: Turn): void {
    this.cache.change(conversationId, conversations.withResend(turn, this.parts.tab, this.parts.now()));
    this.cache.write(conversationId);
    void this.post(conversationId, turn.id);
  }

  remove(conversationId: string): Conversation | null {
    return this.cache.remove(conversationId);
  }

  /** Undoes `remove`. */
  restore(conversation: Conversation): void {
    this.cache.put(conversation);
    this.cache.write(conversation.id);
    this.resumeIn(conversation);
  }

  onSocketOpen(): void {
    this.send(this.watchlist.onOpen(this.parts.now()));
    if (this.catchingUp) this.parts.later(() => this.redraw(), REPLAY_MS);
    this.redraw();
    for (const conversation of this.all()) for (const turn of conversation.turns) this.sendWaiting(conversation.id, turn);
  }

  /** Whether events that were missed without a connection have not arrived yet. */
  get catchingUp(): boolean {
    return this.watchlist.isCatchingUp(this.parts.now());
  }

  private redraw(): void {
    for (const { id } of this.all()) this.onChange(id);
  }

  // There is a connection, so the user is signed in.
  private sendWaiting(conversationId: string, turn: Turn): void {
    if (turn.phase !== "unsent" || turn.problem?.waits !== true) return;
    this.preferAskingTab(turn, () => {
      const now = this.cache.turn(conversationId, turn.id);
      if (now?.phase === "unsent" && now.problem?.waits === true) this.sendAgain(conversationId, now);
    });
  }

  /** Sends the questions that waited for the end of an answer. */
  private sendNext(conversationId: string): void {
    for (const turn of this.get(conversationId)?.turns ?? []) {
      if (turn.phase === "next" && this.canBeSent(conversationId, turn.id)) {
        this.preferAskingTab(turn, () => {
          const now = this.cache.turn(conversationId, turn.id);
          if (now !== null && this.canBeSent(conversationId, turn.id)) this.sendAgain(conversationId, now);
        });
      }
    }
  }

  private canBeSent(conversationId: string, turnId: string): boolean {
    const [conversation, turn] = [this.get(conversationId), this.cache.turn(conversationId, turnId)];
    if (conversation === null || turn?.phase !== "next") return false;
    const last = conversations.turnsBefore(conversation, turn).at(-1);
    return last === undefined || (last.phase === "accepted" && !conversations.isBusy(last));
  }

  private preferAskingTab(turn: Turn, send: () => void): void {
    if (turn.tab === this.parts.tab) send();
    else this.parts.later(send, TAKE_OVER_MS);
  }

  onSocketClose(): void {
    this.watchlist.onClose();
  }

  /** Null: the message is invalid. */
  onSocketMessage(message: Incoming | null): void {
    if (message === null) return this.parts.warn("a message on the watch socket is invalid");
    if (message.kind === "draining") return this.parts.watchSocket.draining(message.afterMs);
    if (message.kind === "expiring") return this.parts.watchSocket.expiring();
    if (message.kind === "renewed") return;
    if (message.kind === "feed") return this.parts.feed(message.events);
    const effects = this.watchlist.receive(message, this.parts.now());
    for (const words of effects.warnings) this.parts.warn(words);
    this.send(effects.send);
    for (const answer of effects.answers) this.onAnswerChange(answer);
    for (const responseId of effects.queueMoves) this.onQueueMove(responseId);
    if (effects.reconnect) this.parts.watchSocket.replace();
  }

  /** The place of a response's request in the queue; null after it has begun, and while it is not
      known. */
  placeInQueue(responseId: string): Place | null {
    return this.watchlist.place(responseId);
  }

  /** The refusal after which a question waits to be sent again; null: it was not refused. */
  refusal(turnId: string): conversations.Refusal | null {
    return this.refusals.get(turnId) ?? null;
  }

  /** Writes pending changes to the store; also called when the page closes. */
  flush(): void {
    this.cache.flush();
  }

  private resumeAll(): void {
    for (const conversation of this.all()) this.resumeIn(conversation);
  }

  private resumeIn(conversation: Conversation): void {
    for (const turn of conversation.turns) this.resume(conversation.id, turn);
    this.sendNext(conversation.id);
  }

  private resume(conversationId: string, turn: Turn): void {
    if (turn.answer !== null && isRunning(turn.answer)) this.follow(conversationId, turn, false);
    if (turn.phase !== "sending") return;
    if (turn.tab === this.parts.tab) void this.post(conversationId, turn.id);
    else if (this.parts.now() - turn.sentAt > ABANDONED_MS) {
      this.fail(conversationId, turn, { code: "abandoned", again: true, words: texts().abandoned });
    }
  }

  private async post(conversationId: string, turnId: string): Promise<void> {
    this.engineWatch.start();
    for (let tries = 1; ; tries += 1) {
      const turn = this.cache.turn(conversationId, turnId);
      const conversation = this.get(conversationId);
      if (turn === null || conversation === null || turn.phase !== "sending") return;
      const expiredFile = turn.before.length > 0 ? undefined : turn.attachments.find((each) => isExpired(each, this.parts.now()));
      if (expiredFile !== undefined) return this.fail(conversationId, turn, expiredProblem(expiredFile.name));
      try {
        this.onAccepted(conversationId, turn, await this.submit(conversation, turn));
        return;
      } catch (error) {
        if (!this.isSending(conversationId, turn)) return;
        const { status, fault, retryAfterMs } =
          error instanceof ApiError ? error : { status: 500, fault: { code: "page_error", message: String(error) }, retryAfterMs: null };
        const offline = status === 0 && !this.parts.online();
        const now = this.parts.now();
        if (!isTransient(status) || offline || tries >= ASK_TRIES || (retryAfterMs ?? 0) > LONGEST_WAIT_MS) {
          const refusal = retryAfterMs === null ? null : { status, until: now + retryAfterMs };
          const problem = turn.before.length > 0 ? continueProblem : askProblem;
          this.fail(conversationId, turn, needsSignIn(status, fault) ? signInProblem(this.parts.store.recipient) : problem(status, fault, refusal, now));
          return;
        }
        const wait = retryAfterMs ?? 400 * 2 ** tries;
        if (isRefusal(status)) this.refusals.set(turnId, { status, until: now + wait });
        this.onChange(conversationId);
        await this.parts.pause(wait);
        this.refusals.delete(turnId);
        this.onChange(conversationId);
      }
    }
  }

  private async submit(conversation: Conversation, turn: Turn): Promise<string> {
    const remote = await this.parts.ensureRemote(conversation);
    this.checkUnchanged(conversation, turn);
    const remoteConversation = { ...conversation, remote };
    if (remote !== null && conversation.remote === null) this.setRemote(conversation.id, remote);
    const context = contextOf(remoteConversation, turn.id);
    const key = conversations.idempotencyKey(turn);
    const attachmentMetadata = turn.before.length > 0 ? {} : toMetadata(turn.attachments);
    const metadata = { conversation: conversation.id, turn: turn.id, asked: String(turn.askedAt), ...attachmentMetadata };
    const { instructions, temperature, length } = turn.settings ?? DEFAULT_SETTINGS;
    const ask = { model: turn.model, instructions, temperature, maxOutputTokens: length, key, trimmed: turn.trimmed, conversation: remote, metadata };
    try {
      return await this.parts.api.ask({ ...ask, ...context });
    } catch (error) {
      // The server may no longer have the answer that this question follows, while this browser has
      // it: then all messages are sent. A continuation cannot be sent so: the model would reply to
      // the text instead of continuing it.
      if (remote !== null || context.previousResponseId === null || turn.before.length > 0 || !(error instanceof ApiError) || !isForgotten(error)) throw error;
      this.checkUnchanged(conversation, turn);
      const input = wholeContext(conversation, turn.id);
      return this.parts.api.ask({ ...ask, key: `${key}.whole`, input, previousResponseId: null });
    }
  }

  // Meanwhile another user may have signed in, for whom the question must not be sent.
  private checkUnchanged(conversation: Conversation, turn: Turn): void {
    if (!this.isSending(conversation.id, turn)) throw new Error("the question changed, or another user is signed in");
  }

  private isSending(conversationId: string, { id, revision }: Turn): boolean {
    const turn = this.cache.turn(conversationId, id);
    return turn?.phase === "sending" && turn.revision === revision;
  }

  private setRemote(conversationId: string, remote: string): void {
    const conversation = this.get(conversationId);
    if (conversation === null) return;
    this.cache.put({ ...conversation, remote });
    this.cache.write(conversationId);
  }

  private onAccepted(conversationId: string, sentTurn: Turn, responseId: string): void {
    const turn = this.cache.turn(conversationId, sentTurn.id);
    if (turn === null || turn.attempt !== sentTurn.attempt) return;
    const acceptedTurn: Turn = { ...turn, phase: "accepted", problem: null, settings: null, answer: turn.answer ?? newAnswer(responseId) };
    this.cache.change(conversationId, acceptedTurn);
    this.cache.write(conversationId);
    this.follow(conversationId, acceptedTurn, true);
    if (acceptedTurn.stopWanted) void this.cancel(conversationId, turn.id, responseId);
  }

  private fail(conversationId: string, turn: Turn, problem: conversations.Problem): void {
    const unsent: Turn = { ...turn, phase: "unsent", revision: turn.revision + 1, stopWanted: false, problem };
    this.cache.change(conversationId, unsent);
    this.cache.write(conversationId);
    // A sign-in sends the question again. No event reports that the server is reachable again, or
    // that the other answer has ended, so the page tries again after a time.
    if (problem.waits === true && (problem.code === UNREACHABLE || problem.code === LOCKED)) this.parts.later(() => this.sendWaiting(conversationId, unsent), TRY_EVERY_MS);
  }

  private async cancel(conversationId: string, turnId: string, responseId: string): Promise<void> {
    try {
      await this.parts.api.cancel(responseId);
    } catch (error) {
      const turn = this.cache.turn(conversationId, turnId);
      // An answer that has just ended cannot be stopped.
      if (turn === null || turn.answer === null || !isRunning(turn.answer)) return;
      this.cache.change(conversationId, { ...turn, stopWanted: false });
      this.parts.warn(`the answer could not be stopped: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  private follow(conversationId: string, turn: Turn, isNew: boolean): void {
    if (turn.answer === null || this.places.has(turn.answer.responseId)) return;
    this.places.set(turn.answer.responseId, { conversation: conversationId, turn: turn.id });
    this.send(this.watchlist.follow(turn.answer, isNew, this.parts.now()));
    this.engineWatch.start();
  }

  private unfollow(responseId: string): void {
    if (this.places.delete(responseId)) this.send(this.watchlist.unfollow(responseId));
  }

  private unfollowAll(turns: readonly Turn[]): void {
    for (const { answer } of turns) if (answer !== null) this.unfollow(answer.responseId);
  }

  private onAnswerChange(answer: Answer): void {
    const place = this.places.get(answer.responseId);
    if (!isRunning(answer)) this.places.delete(answer.responseId);
    const turn = place === undefined ? null : this.cache.turn(place.conversation, place.turn);
    if (place === undefined || turn?.answer?.responseId !== answer.responseId) return;
    this.cache.change(place.conversation, { ...turn, answer, stopWanted: turn.stopWanted && isRunning(answer) });
    if (isRunning(answer)) this.cache.writeLater(place.conversation);
    else {
      this.cache.write(place.conversation);
      this.sendNext(place.conversation);
      this.parts.onAnswerEnd(place.conversation, turn.answer === answer ? turn : { ...turn, answer });
    }
  }

  private onQueueMove(responseId: string): void {
    const place = this.places.get(responseId);
    if (place !== undefined) this.onChange(place.conversation);
  }

  /** Merges the copy of another tab or of the server; null: the conversation was deleted. */
  private merge(id: string, theirs: Conversation | null): void {
    if (theirs === null) return this.cache.drop(id);
    const mine = this.get(id);
    for (const turn of this.cache.join(theirs).turns) {
      const before = mine?.turns.find((other) => other.id === turn.id)?.answer ?? null;
      if (before !== null && before.responseId !== turn.answer?.responseId) this.unfollow(before.responseId);
      if (turn.answer === null) continue;
      if (this.places.has(turn.answer.responseId)) {
        this.watchlist.advance(turn.answer);
        if (!isRunning(turn.answer)) this.unfollow(turn.answer.responseId);
      } else if (isRunning(turn.answer)) this.follow(id, turn, false);
    }
    this.sendNext(id);
  }

  private waiting(): Conversation[] {
    return this.all().filter(({ turns }) => turns.some(isWaiting));
  }

  private send(commands: WatchCommand[]): void {
    for (const command of commands) this.parts.watchSocket.send(command);
  }
}

export function isWaiting(turn: Turn): boolean {
  return turn.phase === "sending" || turn.answer?.status === "queued";
}

function isForgotten(error: ApiError): boolean {
  return error.fault.code === "previous_response_not_found" || error.fault.code === "history_lost";
}
