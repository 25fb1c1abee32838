/* Whether, how soon and with what to come back after a watch socket closed: decisions only, no socket and no clock. */

/** again: come back · renew: come back with a new credential · refused: not without the reader's help */
export type Comeback = "again" | "renew" | "refused";

export interface Closing {
  readonly comeback: Comeback;
  /** What the reader is told; null when a short reconnect needs no words. */
  readonly words: string | null;
}

const NAMED: Record<number, Closing> = {
  1008: { comeback: "refused", words: "The server refused this connection. Reload the page to try again." },
  1009: { comeback: "refused", words: "The server found a message of this page too big. Reload the page to try again." },
  4003: { comeback: "renew", words: null },
  4500: { comeback: "renew", words: "Your credential was not accepted." },
  4501: { comeback: "refused", words: "This address is not allowed to follow answers (TAILRACE_ORIGINS)." },
  4503: { comeback: "refused", words: "This page is older than the server. Reload it." },
};

export function closing(code: number): Closing {
  const named = NAMED[code];
  if (named !== undefined) return named;
  if (code >= 4500 && code <= 4999) return { comeback: "refused", words: `The server ended the connection (${code}).` };
  return { comeback: "again", words: null };
}

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;

/** `attempt` counts from 0; `chance` is uniform in [0, 1). At least half of each step, so that servers that just came
    back are not met by everyone at once nor by anyone in a tight loop. */
export function delay(attempt: number, chance: number): number {
  const step = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(attempt, 10));
  return Math.round(step * (0.5 + chance / 2));
}

/** When to leave a server that announced its drain: somewhere in the first half of the time it gave. */
export function drainDelay(afterMs: number, chance: number): number {
  return Math.round(Math.min(afterMs, 60_000) * 0.5 * chance);
}
