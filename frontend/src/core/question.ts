/* Whether a question is too long to be shown whole at first. */

const MOST_LINES = 12;
const MOST_CHARACTERS = 1_200;
/** An estimate of a line's length. It is the same on every screen, so nothing is measured. */
const LINE_CHARACTERS = 80;

export function isLong(question: string): boolean {
  if (question.length > MOST_CHARACTERS) return true;
  return question.split("\n").reduce((lines, line) => lines + Math.max(1, Math.ceil(line.length / LINE_CHARACTERS)), 0) > MOST_LINES;
}
