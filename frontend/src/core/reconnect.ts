/* Whether and when to reconnect after a watch socket closed: decisions only, no socket and no
   clock. */

import { CLOSE_CODES, type Reconnect } from "./closeCodes";
import { texts } from "./words";

/** again: reconnect · renew: reconnect with a new credential · refused: the reader must act first */
export type ReconnectMode = "again" | "renew" | "refused";

export interface ClosePolicy {
  readonly reconnect: ReconnectMode;
  /** The message to the reader; null: none is needed. */
  readonly words: string | null;
}

const MODES: Record<Reconnect, ReconnectMode> = { resume: "again", new_credential: "renew", never: "refused" };

const WORDS: Record<number, () => string> = {
  1007: () => texts().endedUnreadable,
  1008: () => texts().endedTooMany,
  1009: () => texts().endedTooBig,
  4500: () => texts().endedRevoked,
};

export function closePolicy(code: number): ClosePolicy {
  const entry = CLOSE_CODES[code];
  if (entry !== undefined) {
    const reconnect = MODES[entry.reconnect];
    return { reconnect, words: reconnect === "refused" ? (WORDS[code]?.() ?? texts().endedWithCode(code)) : null };
  }
  // The range of an unknown code says whether to reconnect.
  if (code >= 4500 && code <= 4999) return { reconnect: "refused", words: texts().endedWithCode(code) };
  return { reconnect: "again", words: null };
}

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;

/** `attempt` counts from 0; `chance` is uniform in [0, 1). The delay is random, so that clients do
    not reconnect at the same moment, and at least half of each step, so that no client reconnects
    in a tight loop. */
export function reconnectDelay(attempt: number, chance: number): number {
  const step = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(attempt, 10));
  return Math.round(step * (0.5 + chance / 2));
}

/** When to leave a draining server: a random moment in the first half of the time that it
    announced. */
export function drainDelay(afterMs: number, chance: number): number {
  return Math.round(Math.min(afterMs, 60_000) * 0.5 * chance);
}
