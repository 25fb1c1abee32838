/* Messages to the reader about problems: what happened, and what the reader can do. */

import type { Answer } from "./answer";
import { MAX_IMAGE_BYTES, MAX_TEXT_BYTES, type Kind, type Refusal as FileRefusal } from "./attachments";
import type { Problem, Refusal } from "./conversation";
import type { Fault, Place } from "./protocol";
import { firstModel, type Seam } from "./reading";
import { MAX_INSTRUCTIONS, MAX_TEMPERATURE, type Settings, type InvalidField } from "./settings";
import { texts } from "./words";

/** `status` 0: the server was not reached. `refusal`: when the server said to try again; null: it
    did not say. */
export function askProblem(status: number, fault: Fault, refusal: Refusal | null, now: number): Problem {
  const code = fault.code;
  if (status === 0) return { code, again: true, waits: true, words: texts().unreachableKept };
  if (code === TOO_LONG) return { code, again: false, words: texts().chatTooLong };
  if (code === LOCKED) return { code, again: true, waits: true, words: texts().chatLocked };
  if (code === "conversation_not_found") return { code, again: false, words: texts().chatGone };
  if (status === 403) return { code, again: true, words: texts().mayNotAsk };
  if (status === 413) return { code, again: false, words: texts().questionTooLong };
  if (isRefusal(status)) return { code, again: true, words: serverRefusalWords(status, refusal, now), ...(refusal === null ? {} : { refused: refusal }) };
  if (status >= 500) return { code, again: true, words: texts().serverFailed };
  return { code, again: false, words: fault.message };
}

/** Whether the reader must sign in before the request can be accepted. */
export function needsSignIn(status: number, { code }: Fault): boolean {
  return status === 401 || code === "session_token_missing";
}

/** The problem of a question that waits for a sign-in. `recipient`: of this user; null: of any. */
export function signInProblem(recipient: string | null): Problem {
  return { code: "signed_out", again: true, waits: true, words: recipient === null ? texts().sentAfterSignIn : texts().sentAfterSameSignIn };
}

/** The error code where an answer of the same chat is running, requested on another device. */
export const LOCKED = "conversation_locked";
/** The error code where the input is longer than the model accepts. */
export const TOO_LONG = "context_length_exceeded";

export function delayWords(ms: number | null): string {
  return ms === null ? texts().inAMoment : texts().inSeconds(Math.max(1, Math.ceil(ms / 1000)));
}

/** Whether the server may accept the same request later. */
export function isRefusal(status: number): boolean {
  return status === 429 || status === 503;
}

/** A shorter wait is shown in seconds, a longer one as a time of day. */
const COUNTDOWN_MS = 100_000;

function whenWords(until: number, now: number): string {
  if (until <= now) return texts().now;
  return until - now < COUNTDOWN_MS ? texts().inSeconds(Math.ceil((until - now) / 1000)) : texts().atTime(until);
}

function serverRefusalWords(status: number, refusal: Refusal | null, now: number): string {
  const when = refusal === null ? texts().inAMoment : whenWords(refusal.until, now);
  return status === 429 ? texts().busy(when) : texts().starting(when);
}

/** The text of a problem, with the remaining time. */
export function problemWords({ words, refused: refusal }: Problem, now: number): string {
  return refusal === undefined ? words : serverRefusalWords(refusal.status, refusal, now);
}

/** The text that is shown until a refused question is sent again. */
export function resendWords({ until }: Refusal, now: number): string {
  return texts().sentAgain(texts().inSeconds(Math.max(1, Math.ceil((until - now) / 1000))));
}

/** The problem of a continuation. Where the answer is gone, the text differs from the one of a
    question. */
export function continueProblem(status: number, fault: Fault, refusal: Refusal | null, now: number): Problem {
  if (fault.code === "previous_response_not_found" || fault.code === "history_lost") {
    return { code: fault.code, again: false, words: texts().notContinued };
  }
  return askProblem(status, fault, refusal, now);
}

/** The problem of a question whose upload has expired. */
export function expiredProblem(name: string): Problem {
  return { code: "file_expired", again: false, words: texts().fileExpired(name) };
}

/** Why a file was not uploaded. */
export function uploadWords(status: number, fault: Fault, retryAfterMs: number | null): string {
  if (needsSignIn(status, fault)) return texts().uploadAfterSignIn;
  if (status === 0) return texts().unreachable;
  if (status === 403) return texts().mayNotAsk;
  if (fault.code === "too_many_files") return texts().uploadLimit;
  if (status === 429) return texts().busy(delayWords(retryAfterMs));
  return status >= 500 ? texts().uploadFailed : fault.message;
}

export function fileRefusalWords(why: FileRefusal, name: string, kind: Kind, images: boolean): string {
  switch (why) {
    case "empty":
      return texts().fileEmpty(name);
    case "tooLarge":
      return texts().fileTooLarge(name, sizeWords(kind === "image" ? MAX_IMAGE_BYTES : MAX_TEXT_BYTES));
    case "notDecoded":
      return texts().imageNotDecoded(name);
    case "notText":
      return images ? texts().neitherImageNorText(name) : texts().notText(name);
    case "noImages":
      return texts().modelTakesNoImages;
    case "noFiles":
      return texts().modelTakesNoFiles;
  }
}

/** The text of a number of bytes. */
export function sizeWords(bytes: number): string {
  return bytes < 1_000_000 ? texts().kilobytes(Math.max(1, Math.round(bytes / 1000))) : texts().megabytes(bytes / 1_000_000);
}

const INVALID: Record<InvalidField, (longest: number | null) => string> = {
  instructions: () => texts().instructionsTooLong(MAX_INSTRUCTIONS),
  temperature: () => texts().invalidTemperature(MAX_TEMPERATURE),
  length: (longest) => (longest === null ? texts().invalidLength : texts().invalidLengthUpTo(longest)),
};

/** The text of an invalid setting. */
export function invalidFieldWords(field: InvalidField, longest: number | null): string {
  return INVALID[field](longest);
}

/** The number of decimals of a temperature. */
export function temperatureDigits(temperature: number): number {
  return Math.abs(temperature * 10 - Math.round(temperature * 10)) < 0.05 ? 1 : 2;
}

/** The settings that differ from the defaults, without the model; empty where none does. */
export function settingsWords({ instructions, temperature, length }: Settings): string {
  const parts = [
    ...(instructions === "" ? [] : [texts().withInstructions]),
    ...(temperature === null ? [] : [texts().atTemperature(temperature, temperatureDigits(temperature))]),
    ...(length === null ? [] : [texts().upToTokens(length)]),
  ];
  return parts.join(", ");
}

/** Whether the page tries again before it reports the problem. */
export function isTransient(status: number): boolean {
  return status === 0 || status === 408 || status === 409 || status === 429 || status >= 500;
}

/** The text of a question's place in the queue. */
export function placeWords({ position, etaS, atLeast }: Place): string {
  const requests = position === 0 ? texts().queueNext : texts().queueBefore(position, atLeast);
  return etaS === null ? texts().queueOpen(requests) : texts().queueAbout(requests, durationWords(etaS));
}

function durationWords(seconds: number): string {
  return seconds < 100 ? texts().seconds(Math.max(1, Math.round(seconds))) : texts().minutes(Math.round(seconds / 60));
}

const FAILURES: Record<string, () => string> = {
  expired: () => texts().expired,
  attempts_exhausted: () => texts().attemptsExhausted,
  [TOO_LONG]: () => texts().chatTooLong,
};

/** The note above an answer that comes from a cache or from another model than the requested one;
    null for other answers. */
export function modelNote(answer: Answer): string | null {
  if (answer.cached) return texts().cachedAnswer;
  const model = firstModel(answer);
  return answer.asked === null || model === null || model === answer.asked ? null : texts().answeredBy(model, answer.asked);
}

export function seamWords({ from, to }: Seam): string {
  return from === null ? texts().continuesFromHere(to) : texts().tookOver(from, to);
}

export interface EndNote {
  tone: "quiet" | "problem";
  words: string;
}

/** The note below an answer that did not complete; null where it completed or still runs. */
export function endNote(answer: Answer): EndNote | null {
  switch (answer.status) {
    case "cancelled":
      return { tone: "quiet", words: answer.text === "" ? texts().stoppedAtOnce : texts().stopped };
    case "incomplete":
      return { tone: "quiet", words: incompleteWords(answer) };
    case "failed":
      return { tone: "problem", words: failureWords(answer.fault) };
    case "lost":
      return {
        tone: "problem",
        words: answer.fault?.code === "history_lost" || answer.text !== "" ? texts().restLost : texts().answerLost,
      };
    default:
      return null;
  }
}

function incompleteWords({ reason, shortened }: Answer): string {
  if (reason === "max_output_tokens") return shortened ? texts().shortened : texts().lengthLimit;
  if (reason === "content_filter") return texts().contentFilter;
  return reason === null ? texts().cutOff : texts().cutOffBecause(reason.replace(/_/g, " "));
}

function failureWords(fault: Fault | null): string {
  const text = fault === null ? undefined : FAILURES[fault.code];
  if (text !== undefined) return text();
  return fault === null ? texts().engineFailed : texts().engineFailedBecause(fault.message);
}
