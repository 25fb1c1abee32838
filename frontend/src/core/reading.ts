/* An answer as it is read: one text, also where several made it. A response may have been cut short and continued by
   further ones (`chain`: each goes on where the one before it ended), and within a response another model may have gone on
   where the first one was lost. Texts are put together without anything between them. */

import { parts, type Answer, type Part } from "./answer";

/** Where another model goes on. */
export interface Seam {
  /** Characters of the part's text before it. */
  readonly at: number;
  /** The model that was lost; null where the reader asked for more, and another model answered that. */
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
    // A model that goes on is told before its first word.
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
  // The bound may have cut a character in two: the text behind it has the whole one.
  const before = continues && more !== "" ? last.text.replace(/\ufffd$/, "") : last.text;
  return {
    ...last,
    state: part?.state ?? last.state,
    text: before + more,
    seams: change === null || before === "" ? last.seams : [...last.seams, { at: before.length, ...change }],
  };
}

/** What is told where this item of this response goes on; null where the same model does. */
function seam(chain: readonly Answer[], link: number, place: number): Omit<Seam, "at"> | null {
  const answer = chain[link];
  const number = answer?.segments.findIndex(({ item }) => item === place) ?? -1;
  const [from, to] = [answer?.segments[number - 1]?.model, answer?.segments[number]?.model];
  if (from !== undefined && to !== undefined) return { from, to };
  const before = chain[link - 1]?.model ?? null;
  const now = answer === undefined ? null : firstModel(answer);
  return before === null || now === null || before === now ? null : { from: null, to: now };
}

/** The model that began it. */
export function firstModel(answer: Answer): string | null {
  return answer.segments[0]?.model ?? answer.model;
}

/** What it says to the reader: its messages, without reasoning, calls and notices. */
export function messageText(chain: readonly Answer[]): string {
  const answerParts = readableParts(chain);
  const [only] = answerParts;
  if (only !== undefined && answerParts.length === 1) return only.kind === "message" ? only.text : "";
  return answerParts.flatMap(({ kind, text }) => (kind === "message" && text.trim() !== "" ? [text] : [])).join("\n\n");
}
