/* Messages shown to the reader when something went wrong: what happened and what helps. */

import type { Answer } from "./answer";
import type { Problem } from "./conversation";
import type { Fault, Place } from "./protocol";
import { firstModel, type Seam } from "./reading";

/** `status` 0: the server was not reached. `retryAfterMs`: the delay that the server asked for. */
export function askProblem(status: number, fault: Fault, retryAfterMs: number | null): Problem {
  const code = fault.code;
  if (status === 0) return { code, again: true, waits: true, words: "The server can't be reached. Your question is kept here and is sent when the connection is back." };
  if (status === 401) return { code, again: true, waits: true, words: "You are not signed in. Your question is kept here and is sent when you are." };
  if (code === TOO_LONG) return { code, again: false, words: tooLongWords };
  if (status === 403) return { code, again: true, words: "This address or credential may not ask here." };
  if (status === 413) return { code, again: false, words: "The question is too long for this server. Shorten it and ask again." };
  if (status === 429) {
    return { code, again: true, words: `The service is busy, or that was more than your limit allows. Try again ${delayWords(retryAfterMs)}.` };
  }
  if (status === 503) return { code, again: true, words: "The service is starting or busy and did not take the question. Try again in a moment." };
  if (status >= 500) return { code, again: true, words: "The server failed to take the question. Try again." };
  return { code, again: false, words: fault.message };
}

/** The code of what is more than the model takes. */
export const TOO_LONG = "context_length_exceeded";
const tooLongWords = "This chat is longer than the model can read. Go on without its oldest messages, or begin a new chat.";

function delayWords(ms: number | null): string {
  return ms === null ? "in a moment" : `in ${Math.max(1, Math.ceil(ms / 1000))} s`;
}

/** Shown until a question that was refused is sent again; null where it was not refused. */
export function againWords(status: number, retryAfterMs: number | null): string | null {
  return status === 429 || status === 503 ? `The service is busy. Your question is sent again ${delayWords(retryAfterMs)}.` : null;
}

/** What cannot be continued any more, in other words than a question that cannot be asked. */
export function continueProblem(status: number, fault: Fault, retryAfterMs: number | null): Problem {
  if (fault.code === "previous_response_not_found" || fault.code === "history_lost") {
    return { code: fault.code, again: false, words: "The server no longer has this answer, so it can't be continued." };
  }
  return askProblem(status, fault, retryAfterMs);
}

/** Whether trying again by itself may help before the reader is bothered. */
export function isPassing(status: number): boolean {
  return status === 0 || status === 408 || status === 409 || status === 429 || status >= 500;
}

/** Where a question stands in the queue. */
export function placeWords({ position, etaS, atLeast }: Place): string {
  const requests = position === 0 ? "Yours is next" : `${atLeast ? "At least " : ""}${position} request${position === 1 ? "" : "s"} before yours`;
  return etaS === null ? `${requests}…` : `${requests}, about ${durationWords(etaS)}`;
}

function durationWords(seconds: number): string {
  return seconds < 100 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} minutes`;
}

const FAILURES: Record<string, string> = {
  expired: "The question waited too long in the queue and was dropped.",
  attempts_exhausted: "Several workers tried to answer and failed.",
  [TOO_LONG]: tooLongWords,
};

/** Who or what answered, where it is not just the model that was asked. */
export function servedWords(answer: Answer): string | null {
  if (answer.cached) return "An equal question was answered a short time ago. This is that answer again.";
  const model = firstModel(answer);
  return answer.asked === null || model === null || model === answer.asked ? null : `Answered by ${model}: ${answer.asked} was not available.`;
}

export function seamWords({ from, to }: Seam): string {
  return from === null ? `${to} continues from here` : `${from} stopped answering; ${to} continues from here`;
}

export interface EndNote {
  tone: "quiet" | "problem";
  words: string;
}

/** How an answer ended, where it did not simply complete. */
export function endNote(answer: Answer): EndNote | null {
  switch (answer.status) {
    case "cancelled":
      return { tone: "quiet", words: answer.text === "" ? "Stopped before the first word." : "Stopped." };
    case "incomplete":
      return { tone: "quiet", words: incompleteWords(answer) };
    case "failed":
      return { tone: "problem", words: failureWords(answer.fault) };
    case "lost":
      return {
        tone: "problem",
        words:
          answer.fault?.code === "history_lost" || answer.text !== ""
            ? "The server no longer has the rest of this answer. What had arrived is kept here."
            : "The server no longer has this answer.",
      };
    default:
      return null;
  }
}

function incompleteWords({ reason, shortened }: Answer): string {
  if (reason === "max_output_tokens") return shortened ? "Cut short, because the service was busy." : "Cut off: the length limit was reached.";
  if (reason === "content_filter") return "Cut off by the content filter.";
  return reason === null ? "Cut off before the end." : `Cut off before the end (${reason.replace(/_/g, " ")}).`;
}

function failureWords(fault: Fault | null): string {
  const known = fault === null ? undefined : FAILURES[fault.code];
  if (known !== undefined) return known;
  return fault === null ? "The engine failed while answering." : `The engine failed while answering: ${fault.message}`;
}
