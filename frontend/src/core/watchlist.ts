/* What this tab follows on the watch socket, without the socket: messages in, changed answers and messages to send out.

   A socket may close at any moment and another may already be open beside it; answers only ever advance by the next
   sequence_number, so events that come twice or from the older socket change nothing, and events that come too early
   (a gap) make the list ask again from the last good one. */

import { apply, isRunning, lose, type Answer } from "./answer";
import type { Fault, Incoming, Place } from "./protocol";

export interface WatchCommand {
  type: "watch" | "unwatch";
  response_id: string;
  starting_after?: number;
}

export interface Effects {
  send: WatchCommand[];
  /** The answers that changed. */
  changed: Answer[];
  /** The responses whose place in the queue changed. */
  moved: string[];
  /** Asking again did not help: the connection itself is to be replaced. */
  reconnect: boolean;
  /** Things that must not happen and were mended; for the console. */
  warnings: string[];
}

/** Events that come this soon after a watch that was not the first are its replay, not the model's pace. */
export const REPLAY_MS = 1000;
/** How long to wait for the events asked for again before asking once more. */
export const ASK_AGAIN_MS = 3000;
/** After this time without an event of a running answer, the connection counts as dead. */
export const SILENCE_MS = 20_000;
const ASKS_BEFORE_RECONNECT = 3;
/** What a server says of a response that it cannot show any more, or never could. */
const GONE = new Set(["response_not_found", "history_lost"]);

interface Followed {
  answer: Answer;
  /** The time until which events count as a replay; 0 when live from the start. */
  replayUntil: number;
  /** Whether the next watch is the first one, made by the tab that asked. */
  fresh: boolean;
  /** When a gap was last asked about; null while there is none. `asks` counts since the last progress. */
  askedAgainAt: number | null;
  asks: number;
  heardAt: number;
  /** Nothing was heard of it since it was asked for. */
  behind: boolean;
  place: Place | null;
}

export class Watchlist {
  private readonly followed = new Map<string, Followed>();
  private open = false;

  /** `asked` is true when this tab has just asked for the response, so its first events are live. */
  follow(answer: Answer, asked: boolean, now: number): WatchCommand[] {
    const known = this.followed.get(answer.responseId);
    if (known !== undefined || !isRunning(answer)) return [];
    const followed = { answer, replayUntil: 0, fresh: asked, askedAgainAt: null, asks: 0, heardAt: now, behind: false, place: null };
    this.followed.set(answer.responseId, followed);
    return this.open ? [this.watch(followed, now)] : [];
  }

  unfollow(responseId: string): WatchCommand[] {
    return this.followed.delete(responseId) && this.open ? [{ type: "unwatch", response_id: responseId }] : [];
  }

  /** Another tab got further: go on from there. */
  advance(answer: Answer): void {
    const followed = this.followed.get(answer.responseId);
    if (followed === undefined) return;
    followed.answer = answer;
    if (!isRunning(answer)) this.followed.delete(answer.responseId);
  }

  /** Where its request stands in the queue, as last heard; null once it has begun. */
  place(responseId: string): Place | null {
    const followed = this.followed.get(responseId);
    return followed?.answer.status === "queued" ? followed.place : null;
  }

  opened(now: number): WatchCommand[] {
    this.open = true;
    return [...this.followed.values()].map((followed) => this.watch(followed, now));
  }

  closed(): void {
    this.open = false;
    for (const followed of this.followed.values()) followed.place = null; // nothing says when it changes
  }

  /** Whether a running answer was silent for `SILENCE_MS`: the connection is then replaced. */
  isSilent(now: number): boolean {
    if (!this.open) return false;
    const silent = [...this.followed.values()].some((followed) => now - followed.heardAt > SILENCE_MS);
    if (silent) for (const followed of this.followed.values()) followed.heardAt = now;
    return silent;
  }

  /** Whether the replay of a running answer has not come yet. */
  isCatchingUp(now: number): boolean {
    return this.open && [...this.followed.values()].some(({ behind, replayUntil }) => behind && now < replayUntil);
  }

  receive(message: Incoming, now: number): Effects {
    const effects: Effects = { send: [], changed: [], moved: [], reconnect: false, warnings: [] };
    if (message.kind === "feed" || message.kind === "draining" || message.kind === "expiring" || message.kind === "renewed") return effects;
    const followed = message.responseId === null ? undefined : this.followed.get(message.responseId);
    if (message.kind === "error" && message.responseId === null) {
      effects.warnings.push(`watch error ${message.fault.code}: ${message.fault.message}`);
    }
    if (followed === undefined) return effects;
    followed.heardAt = now;
    followed.behind = false;
    if (message.kind === "events") this.take(followed, message.events, now, effects);
    else if (message.kind === "done") this.finish(followed, now, effects);
    else this.refuse(followed, message.status, message.fault, effects);
    return effects;
  }

  private take(followed: Followed, events: (Incoming & { kind: "events" })["events"], now: number, effects: Effects): void {
    const before = followed.answer;
    const seenAt = now < followed.replayUntil ? null : now;
    let gap = false;
    for (const event of events) {
      const { answer, verdict, corrected } = apply(followed.answer, event, seenAt);
      followed.answer = answer;
      gap ||= verdict === "gap";
      if (event.kind === "place") {
        followed.place = event.place;
        effects.moved.push(answer.responseId);
      }
      if (corrected) effects.warnings.push(`the text of ${answer.responseId} did not match its pieces`);
    }
    if (followed.answer !== before) {
      followed.asks = 0;
      followed.askedAgainAt = null;
      effects.changed.push(followed.answer);
    }
    if (!isRunning(followed.answer)) this.followed.delete(followed.answer.responseId);
    else if (gap) this.askAgain(followed, now, effects);
  }

  // The server says that nothing more will come, yet the end is not here: the events between were missed.
  private finish(followed: Followed, now: number, effects: Effects): void {
    this.askAgain(followed, now, effects);
  }

  private refuse(followed: Followed, status: number, fault: Fault, effects: Effects): void {
    if (GONE.has(fault.code) || status === 404 || status === 410) {
      followed.answer = lose(followed.answer, fault);
      this.followed.delete(followed.answer.responseId);
      effects.changed.push(followed.answer);
    } else if (status === 429 || status >= 500) {
      // The server is short of something; the response itself is still there, for another connection.
      effects.reconnect = true;
    } else {
      // Such as too many at once: it stays on the list and is asked for on the next connection.
      effects.warnings.push(`watching ${followed.answer.responseId} was refused: ${fault.code}`);
    }
  }

  private askAgain(followed: Followed, now: number, effects: Effects): void {
    if (followed.askedAgainAt !== null && now - followed.askedAgainAt < ASK_AGAIN_MS) return;
    followed.askedAgainAt = now;
    followed.asks += 1;
    if (followed.asks > ASKS_BEFORE_RECONNECT) {
      followed.asks = 0;
      effects.reconnect = true;
      return;
    }
    effects.warnings.push(`asked again for ${followed.answer.responseId} after ${followed.answer.lastSeq}`);
    effects.send.push({ type: "unwatch", response_id: followed.answer.responseId }, this.watch(followed, now));
  }

  private watch(followed: Followed, now: number): WatchCommand {
    followed.replayUntil = followed.fresh ? 0 : now + REPLAY_MS;
    followed.behind = !followed.fresh;
    followed.fresh = false;
    const { responseId, lastSeq } = followed.answer;
    const command: WatchCommand = { type: "watch", response_id: responseId };
    return lastSeq < 0 ? command : { ...command, starting_after: lastSeq };
  }
}
