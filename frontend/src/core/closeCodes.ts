/* Written by scripts/close_codes.py from tailrace/protocol/close_codes.py. */

export type Reconnect = "never" | "resume" | "new_credential";

export interface CloseCode {
  readonly reason: string;
  readonly reconnect: Reconnect;
}

/** The codes that `/v1/watch` sends. */
export const CLOSE_CODES: Readonly<Record<number, CloseCode>> = {
  1007: { reason: "text is not UTF-8", reconnect: "never" },
  1008: { reason: "too many frames, or a message without an end", reconnect: "never" },
  1009: { reason: "message too big", reconnect: "never" },
  1011: { reason: "internal error", reconnect: "resume" },
  1012: { reason: "restarting, come back", reconnect: "resume" },
  4001: { reason: "too slow, resume by position", reconnect: "resume" },
  4002: { reason: "draining, resume elsewhere", reconnect: "resume" },
  4003: { reason: "credential expired, come back with a new one", reconnect: "new_credential" },
  4500: { reason: "credential revoked, sign in again", reconnect: "never" },
};
