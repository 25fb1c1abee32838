/* An answer as the reader sees it: one text, also where several responses or models wrote it. A
   response may have been cut short and continued by other responses (`chain`: each continues the
   one before it). Within a response, another model may have continued after the first one failed.
   The texts are joined without a separator. */

import { parts, type Answer, type Part } from "./answer";

/** The point where another model continues. */
export interface Seam {
  /** Characters of the part's text before it. */
  readonly at: number;
  /** The model that failed; null where the reader requested a continuation and another model wrote
      it. */
  readonly from: string | null;
  readonly to: string;
}

export interface ReadablePart extends Part {
  readonly seams: readonly Seam[];
}

export function readableParts(chain: readonly Answer[]): ReadablePart[] {
  const out: ReadablePart[] = [];
  chain.forEach((answer, link) => {
    const answerParts = parts(answer);
    // A change of the model is shown before the new model's first word.
    const places = Math.max(answerParts.length, (answer.segments.at(-1)?.item ?? -1) + 1, 1);
    for (let place = 0; place < places; place += 1) {
      const part = answerParts[place];
      const last = out.at(-1);
      const continues = link > 0 && place === 0;
      const joins = continues || answer.segments.some(({ item }, number) => number > 0 && item === place);
      if (joins && last?.kind === "message" && (part === undefined || part.kind === "message")) {
        out[out.length - 1] = joinParts(last, part, continues, seam(chain, link, place));
      } else if (part !== undefined) out.push({ ...part, seams: [] });
    }
  });
  return out;
}

function joinParts(last: ReadablePart, part: Part | undefined, continues: boolean, change: Omit<Seam, "at"> | null): ReadablePart {
  const more = part?.text ?? "";
  // The length limit may have cut a character in two: the next text has the whole character.
  const before = continues && more !== "" ? last.text.replace(/\ufffd$/, "") : last.text;
  return {
    ...last,
    state: part?.state ?? last.state,
    text: before + more,
    seams: change === null || before === "" ? last.seams : [...last.seams, { at: before.length, ...change }],
  };
}

/** The change of models at this item of this response; null where the same model continues. */
function seam(chain: readonly Answer[], link: number, place: number): Omit<Seam, "at"> | null {
  const answer = chain[link];
  const number = answer?.segments.findIndex(({ item }) => item === place) ?? -1;
  const [from, to] = [answer?.segments[number - 1]?.model, answer?.segments[number]?.model];
  if (from !== undefined && to !== undefined) return { from, to };
  const before = chain[link - 1]?.model ?? null;
  const now = answer === undefined ? null : firstModel(answer);
  return before === null || now === null || before === now ? null : { from: null, to: now };
}

/** The model that began the answer. */
export function firstModel(answer: Answer): string | null {
  return answer.segments[0]?.model ?? answer.model;
}

/** The messages of an answer, without reasoning, calls and notices. */
export function messageText(chain: readonly Answer[]): string {
  const answerParts = readableParts(chain);
  const [only] = answerParts;
  if (only !== undefined && answerParts.length === 1) return only.kind === "message" ? only.text : "";
  return answerParts.flatMap(({ kind, text }) => (kind === "message" && text.trim() !== "" ? [text] : [])).join("\n\n");
}
