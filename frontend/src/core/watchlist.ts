/* The responses that this tab follows on the watch socket, without I/O: messages go in; changed
   answers and messages to send come out.

   A socket may close at any moment, and another may already be open. Answers only advance by the
   next sequence_number, so duplicate events and events from the older socket change nothing. After
   a gap, the list requests the events after the last applied one. */

import { apply, isRunning, markLost, type Answer } from "./answer";
import type { Fault, Incoming, Place } from "./protocol";

export interface WatchCommand {
  type: "watch" | "unwatch";
  response_id: string;
  starting_after?: number;
}

export interface Effects {
  send: WatchCommand[];
  /** The answers that changed. */
  answers: Answer[];
  /** The ids of the responses whose place in the queue changed. */
  queueMoves: string[];
  /** Repeated requests did not help: the connection must be replaced. */
  reconnect: boolean;
  /** Unexpected events that were handled; for the console. */
  warnings: string[];
}

/** Events that arrive within this time after a repeated watch are its replay and do not show the
    model's pace. */
export const REPLAY_MS = 1000;
/** The time to wait for requested events before the next request. */
export const REQUEST_AGAIN_MS = 3000;
/** After this time without an event of a running answer, the connection counts as dead. */
export const SILENCE_MS = 20_000;
const REQUESTS_BEFORE_RECONNECT = 3;
/** Error codes of a response that the server does not have (any more). */
const GONE_CODES = new Set(["response_not_found", "history_lost"]);

interface Subscription {
  answer: Answer;
  /** Events until this time count as a replay; 0: live from the start. */
  replayUntil: number;
  /** Whether this tab has just requested the response and did not watch it yet. */
  isNew: boolean;
  /** When the events of a gap were last requested; null: no gap. `requests` counts since the last
      progress. */
  gapRequestedAt: number | null;
  requests: number;
  lastEventAt: number;
  /** Whether no event has arrived since the last watch. */
  awaitsReplay: boolean;
  place: Place | null;
}

export class Watchlist {
  private readonly subscriptions = new Map<string, Subscription>();
  private open = false;

  /** `isNew`: this tab has just requested the response, so its first events are live. */
  follow(answer: Answer, isNew: boolean, now: number): WatchCommand[] {
    const existing = this.subscriptions.get(answer.responseId);
    if (existing !== undefined || !isRunning(answer)) return [];
    const subscription = { answer, replayUntil: 0, isNew, gapRequestedAt: null, requests: 0, lastEventAt: now, awaitsReplay: false, place: null };
    this.subscriptions.set(answer.responseId, subscription);
    return this.open ? [this.watch(subscription, now)] : [];
  }

  unfollow(responseId: string): WatchCommand[] {
    return this.subscriptions.delete(responseId) && this.open ? [{ type: "unwatch", response_id: responseId }] : [];
  }

  /** Another tab has a more advanced answer: continue from it. */
  advance(answer: Answer): void {
    const subscription = this.subscriptions.get(answer.responseId);
    if (subscription === undefined) return;
    subscription.answer = answer;
    if (!isRunning(answer)) this.subscriptions.delete(answer.responseId);
  }

  /** The place of the request in the queue, as last received; null after it has begun. */
  place(responseId: string): Place | null {
    const subscription = this.subscriptions.get(responseId);
    return subscription?.answer.status === "queued" ? subscription.place : null;
  }

  onOpen(now: number): WatchCommand[] {
    this.open = true;
    return [...this.subscriptions.values()].map((subscription) => this.watch(subscription, now));
  }

  onClose(): void {
    this.open = false;
    for (const subscription of this.subscriptions.values()) subscription.place = null; // without a connection, changes of it do not arrive
  }

  /** Whether a running answer had no event for `SILENCE_MS`. The connection is then replaced. */
  isSilent(now: number): boolean {
    if (!this.open) return false;
    const silent = [...this.subscriptions.values()].some((subscription) => now - subscription.lastEventAt > SILENCE_MS);
    if (silent) for (const subscription of this.subscriptions.values()) subscription.lastEventAt = now;
    return silent;
  }

  /** Whether the replay of a running answer has not arrived yet. */
  isCatchingUp(now: number): boolean {
    return this.open && [...this.subscriptions.values()].some(({ awaitsReplay, replayUntil }) => awaitsReplay && now < replayUntil);
  }

  receive(message: Incoming, now: number): Effects {
    const effects: Effects = { send: [], answers: [], queueMoves: [], reconnect: false, warnings: [] };
    if (message.kind === "feed" || message.kind === "draining" || message.kind === "expiring" || message.kind === "renewed") return effects;
    const subscription = message.responseId === null ? undefined : this.subscriptions.get(message.responseId);
    if (message.kind === "error" && message.responseId === null) {
      effects.warnings.push(`watch error ${message.fault.code}: ${message.fault.message}`);
    }
    if (subscription === undefined) return effects;
    subscription.lastEventAt = now;
    subscription.awaitsReplay = false;
    if (message.kind === "events") this.applyEvents(subscription, message.events, now, effects);
    else if (message.kind === "done") this.onDone(subscription, now, effects);
    else this.onError(subscription, message.status, message.fault, effects);
    return effects;
  }

  private applyEvents(subscription: Subscription, events: (Incoming & { kind: "events" })["events"], now: number, effects: Effects): void {
    const before = subscription.answer;
    const receivedAt = now < subscription.replayUntil ? null : now;
    let gap = false;
    for (const event of events) {
      const { answer, verdict, corrected } = apply(subscription.answer, event, receivedAt);
      subscription.answer = answer;
      gap ||= verdict === "gap";
      if (event.kind === "place") {
        subscription.place = event.place;
        effects.queueMoves.push(answer.responseId);
      }
      if (corrected) effects.warnings.push(`the text of ${answer.responseId} did not match its pieces`);
    }
    if (subscription.answer !== before) {
      subscription.requests = 0;
      subscription.gapRequestedAt = null;
      effects.answers.push(subscription.answer);
    }
    if (!isRunning(subscription.answer)) this.subscriptions.delete(subscription.answer.responseId);
    else if (gap) this.requestAgain(subscription, now, effects);
  }

  // The server has sent all events, but the end is missing here: events were lost.
  private onDone(subscription: Subscription, now: number, effects: Effects): void {
    this.requestAgain(subscription, now, effects);
  }

  private onError(subscription: Subscription, status: number, fault: Fault, effects: Effects): void {
    if (GONE_CODES.has(fault.code) || status === 404 || status === 410) {
      subscription.answer = markLost(subscription.answer, fault);
      this.subscriptions.delete(subscription.answer.responseId);
      effects.answers.push(subscription.answer);
    } else if (status === 429 || status >= 500) {
      // The server lacks capacity. The response still exists; another connection may get it.
      effects.reconnect = true;
    } else {
      // For example too many watches: the response stays on the list and is requested on the next
      // connection.
      effects.warnings.push(`watching ${subscription.answer.responseId} was refused: ${fault.code}`);
    }
  }

  private requestAgain(subscription: Subscription, now: number, effects: Effects): void {
    if (subscription.gapRequestedAt !== null && now - subscription.gapRequestedAt < REQUEST_AGAIN_MS) return;
    subscription.gapRequestedAt = now;
    subscription.requests += 1;
    if (subscription.requests > REQUESTS_BEFORE_RECONNECT) {
      subscription.requests = 0;
      effects.reconnect = true;
      return;
    }
    effects.warnings.push(`requested again: ${subscription.answer.responseId} after ${subscription.answer.lastSeq}`);
    effects.send.push({ type: "unwatch", response_id: subscription.answer.responseId }, this.watch(subscription, now));
  }

  private watch(subscription: Subscription, now: number): WatchCommand {
    subscription.replayUntil = subscription.isNew ? 0 : now + REPLAY_MS;
    subscription.awaitsReplay = !subscription.isNew;
    subscription.isNew = false;
    const { responseId, lastSeq } = subscription.answer;
    const command: WatchCommand = { type: "watch", response_id: responseId };
    return lastSeq < 0 ? command : { ...command, starting_after: lastSeq };
  }
}
