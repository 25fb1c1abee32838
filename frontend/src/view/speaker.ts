/* Announces changes to readers who do not see the page: not every word of an answer, but the whole
   answer at its end. */

import { isRunning, parts, type Answer } from "../core/answer";
import { chain, type Refusal, type Turn } from "../core/conversation";
import { resendWords, endNote, problemWords, seamWords, modelNote } from "../core/messages";
import type { ItemKind } from "../core/protocol";
import { readableParts, messageText, type Seam } from "../core/reading";
import { texts } from "../core/words";
import { h } from "./dom";
import { markdown } from "./lazyMarkdown";

export class Speaker {
  readonly element = h("div", { class: "sr-only", role: "status", "aria-live": "polite" });
  /** By turn: the stage at the last announcement, and the number of model changes until then. */
  private readonly stages = new Map<string, { stage: string; seams: number }>();

  /** Called when another chat is opened. */
  forget(): void {
    this.stages.clear();
    this.element.textContent = "";
  }

  /** Announces all changes of a question that was just asked. The first stage of other turns is not
      announced. */
  watch(turn: Turn): void {
    if (!this.stages.has(turn.id)) this.stages.set(turn.id, { stage: stageOf(turn, null), seams: 0 });
  }

  // For a continued answer, only the new part is announced.
  say(turn: Turn, refusal: Refusal | null): void {
    const seams = readableParts(chain(turn)).flatMap((part) => part.seams);
    const stage = stageOf(turn, refusal);
    const before = this.stages.get(turn.id);
    this.stages.set(turn.id, { stage, seams: seams.length });
    if (before === undefined || (before.stage === stage && before.seams >= seams.length)) return;
    const words = stageWords(turn, refusal, before.seams < seams.length ? seams.at(-1) : undefined);
    if (words !== null) this.element.textContent = words;
  }
}

/** A key that changes when there is something to announce: for a waiting question once, not every
    second. */
function stageOf({ answer, phase }: Turn, refusal: Refusal | null): string {
  if (answer === null) return refusal === null ? phase : `refused until ${refusal.until}`;
  return isRunning(answer) ? runningStage(answer) : answer.status;
}

function stageWords(turn: Turn, refusal: Refusal | null, seam: Seam | undefined): string | null {
  const { answer } = turn;
  if (answer === null) return unansweredWords(turn, refusal);
  if (!isRunning(answer)) return endWords(answer);
  const stage = runningStage(answer);
  if (stage === "thinking") return texts().saysThinking;
  if (stage === "calling") return texts().saysCalling;
  if (seam !== undefined) return `${seamWords(seam)}.`;
  if (stage !== "answering") return null;
  if (turn.before.length > 0) return texts().saysContinues;
  const note = modelNote(answer);
  return note === null ? texts().saysBegins : `${texts().saysBegins} ${note}`;
}

function unansweredWords({ phase, problem }: Turn, refusal: Refusal | null): string | null {
  if (phase === "unsent") return problem === null ? texts().notSent : problemWords(problem, Date.now());
  return refusal === null ? null : resendWords(refusal, Date.now());
}

function endWords(answer: Answer): string {
  const calls = parts(answer).flatMap(({ kind, state, name }) => (isCall(kind) && state === "whole" ? [name] : []));
  const waits = calls.length === 0 ? [] : [texts().saysWaitsFor(calls)];
  return [endNote(answer)?.words ?? texts().saysComplete, ...waits, spokenText(messageText([answer]))].join(" ");
}

// Markdown was loaded at the answer's beginning, except without a network.
function spokenText(text: string): string {
  return markdown.value?.speech(text) ?? text;
}

function isCall(kind: ItemKind): boolean {
  return kind === "function" || kind === "custom";
}

/** The kind of the newest part of a running answer. */
function runningStage(answer: Answer): string {
  const kind = answer.items.at(-1)?.kind;
  if (kind === undefined) return answer.text === "" ? "waiting" : "answering";
  return kind === "reasoning" ? "thinking" : isCall(kind) ? "calling" : "answering";
}
