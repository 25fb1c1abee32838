/* The fold of one response: its events in order of sequence_number give its text and how it ended.

   state         event          result
   running n     n+1            applied
   running n     <= n           duplicate  (a replay that overlaps, a second socket, another tab's work)
   running n     > n+1          gap        (nothing changes: the caller asks again from n)
   ended         anything       duplicate

   Two folds of one response never contradict each other, one is only further: `further` picks it. So a snapshot of an
   answer may come from any tab and any moment, and the stream goes on exactly behind it. */

import type { Fault, Outcome, ResponseEvent, Usage } from "./protocol";

/** `lost`: the server no longer has this response, so it can neither go on nor be shown whole. */
export type AnswerStatus = "queued" | "in_progress" | Outcome | "lost";

export interface Answer {
  readonly responseId: string;
  /** sequence_number of the last event applied; -1 before the first. */
  readonly lastSeq: number;
  readonly status: AnswerStatus;
  readonly text: string;
  /** How many pieces the text came in: a lower bound of its tokens while it runs. */
  readonly deltas: number;
  /** When the first and the latest piece of text were seen to arrive, in ms; null when they came as a replay,
      which says nothing about their pace. */
  readonly firstAt: number | null;
  readonly lastAt: number | null;
  readonly reason: string | null;
  readonly usage: Usage | null;
  readonly fault: Fault | null;
  readonly model: string | null;
}

export type Verdict = "applied" | "duplicate" | "gap";

export interface Applied {
  readonly answer: Answer;
  readonly verdict: Verdict;
  /** The server's statement of the whole text differed from what the pieces gave; the server's was taken. */
  readonly corrected: boolean;
}

export function newAnswer(responseId: string): Answer {
  return {
    responseId,
    lastSeq: -1,
    status: "queued",
    text: "",
    deltas: 0,
    firstAt: null,
    lastAt: null,
    reason: null,
    usage: null,
    fault: null,
    model: null,
  };
}

export function isRunning(answer: Answer): boolean {
  return answer.status === "queued" || answer.status === "in_progress";
}

/** `seenAt` is the time the event was seen to arrive, or null in a replay. */
export function apply(answer: Answer, event: ResponseEvent, seenAt: number | null): Applied {
  if (!isRunning(answer) || event.seq <= answer.lastSeq) return { answer, verdict: "duplicate", corrected: false };
  if (event.seq > answer.lastSeq + 1) return { answer, verdict: "gap", corrected: false };
  const next = { ...answer, lastSeq: event.seq };
  switch (event.kind) {
    case "status":
      return applied({ ...next, status: event.status });
    case "delta":
      return applied({
        ...next,
        status: "in_progress",
        text: answer.text + event.delta,
        deltas: answer.deltas + 1,
        firstAt: answer.text === "" ? seenAt : answer.firstAt,
        lastAt: seenAt,
      });
    case "text":
      return { answer: { ...next, text: event.text }, verdict: "applied", corrected: event.text !== answer.text };
    case "end":
      return applied({
        ...next,
        status: event.outcome,
        reason: event.reason,
        usage: event.usage,
        fault: event.fault,
        model: event.model,
      });
    case "other":
      return applied(next);
  }
}

function applied(answer: Answer): Applied {
  return { answer, verdict: "applied", corrected: false };
}

export function lose(answer: Answer, fault: Fault): Answer {
  return isRunning(answer) ? { ...answer, status: "lost", fault } : answer;
}

/** Of two folds of the same response, the further one; with the earliest sight of its first piece that either had. */
export function further(a: Answer, b: Answer): Answer {
  const [ahead, behind] = rank(a) >= rank(b) ? [a, b] : [b, a];
  if (behind.firstAt === null || (ahead.firstAt !== null && ahead.firstAt <= behind.firstAt)) return ahead;
  return { ...ahead, firstAt: behind.firstAt };
}

// An end that came from the stream stands above `lost`, which only says that the stream could not be had.
function rank(answer: Answer): number {
  if (isRunning(answer)) return answer.lastSeq;
  return answer.status === "lost" ? 1e15 + answer.lastSeq : 2e15;
}
