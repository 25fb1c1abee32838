/* Says to those who do not see the page what changed while they were here: not every word as it comes, but the whole once it
   stands. */

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
  /** What was last said about each turn, and how many models had gone on with it by then. */
  private readonly stages = new Map<string, { stage: string; seams: number }>();

  /** Another chat is shown. */
  forget(): void {
    this.stages.clear();
    this.element.textContent = "";
  }

  /** A question that was asked here just now; without this, what a turn is when it is first drawn is no news. */
  watch(turn: Turn): void {
    if (!this.stages.has(turn.id)) this.stages.set(turn.id, { stage: stageOf(turn, null), seams: 0 });
  }

  // Of an answer that was continued, what is new is said.
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

/** It changes when there is something new to say: for a question that waits, once and not with every second. */
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
  if (turn.before.length > 0) return texts().saysGoesOn;
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

// Who hears of an answer's end saw it begin, so Markdown was brought; without a network, perhaps not.
function spokenText(text: string): string {
  return markdown.value?.speech(text) ?? text;
}

function isCall(kind: ItemKind): boolean {
  return kind === "function" || kind === "custom";
}

/** What a running answer goes on with. */
function runningStage(answer: Answer): string {
  const kind = answer.items.at(-1)?.kind;
  if (kind === undefined) return answer.text === "" ? "waiting" : "answering";
  return kind === "reasoning" ? "thinking" : isCall(kind) ? "calling" : "answering";
}
