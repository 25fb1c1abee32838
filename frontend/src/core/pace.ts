/* The figures under an answer. A figure that was not observed is left out. */

import { isRunning, type Answer } from "./answer";
import { texts } from "./words";

export interface Pace {
  firstTokenMs: number | null;
  tokensPerSecond: number | null;
  tokens: number | null;
  /** False while the answer runs: then `tokens` counts the pieces that arrived, a lower bound. */
  exact: boolean;
}

/** In a shorter span, a rate depends on the network's batches more than on the model. */
const SHORTEST_SPAN_MS = 150;

/** `before`: the responses that the answer continues. Their tokens count; their pace does not. */
export function pace(answer: Answer, sentAt: number, before: readonly Answer[] = []): Pace {
  const exact = !isRunning(answer);
  const tokens = exact ? (answer.usage?.output ?? null) : answer.deltas || null;
  const whole = before.reduce<number | null>((sum, { usage }) => (sum === null || usage === null ? null : sum + usage.output), tokens);
  const span = answer.firstAt === null || answer.lastAt === null ? 0 : answer.lastAt - answer.firstAt;
  return {
    firstTokenMs: answer.firstAt === null ? null : Math.max(0, answer.firstAt - sentAt),
    // The first token opens the span, so it is not one of those produced within it.
    tokensPerSecond: tokens === null || tokens < 2 || span < SHORTEST_SPAN_MS ? null : ((tokens - 1) * 1000) / span,
    tokens: whole,
    exact,
  };
}

export function seconds(ms: number): string {
  if (ms < 1000) return texts().milliseconds(ms);
  if (ms < 60_000) return texts().secondsWith(ms / 1000, ms < 10_000 ? 1 : 0);
  return texts().minutesSeconds(Math.floor(ms / 60_000), (ms % 60_000) / 1000);
}

export function paceWords(figures: Pace): string[] {
  const words: string[] = [];
  if (figures.firstTokenMs !== null) words.push(texts().firstToken(seconds(figures.firstTokenMs)));
  const rate = figures.tokensPerSecond;
  if (rate !== null) words.push(texts().tokensPerSecond(rate, rate < 10 ? 1 : 0, figures.exact));
  if (figures.tokens !== null && figures.exact) words.push(texts().tokens(figures.tokens));
  return words;
}
