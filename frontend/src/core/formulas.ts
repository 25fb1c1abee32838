/* Formulas in Markdown: \(…\), \[…\], $$…$$ and $…$. Markdown would interpret their backslashes and
   underscores. So a placeholder replaces each formula before the text is parsed, and the formula is
   put back when the tree is built. A placeholder behaves like punctuation in Markdown. Code is
   skipped where this file recognises it. Other code (an indented block, an address) gets its source
   back (`restore`).

     opener        closer     conditions
     \(            \)         in one paragraph
     \[            \]         in one paragraph; over blank lines where the opener stands alone on its line
     $$            $$         the same
     $             $          in one line; no space inside the dollars, no digit or letter next to them, no prose between

   While a text is running, a part that may still become a formula is held back. An unfinished
   formula on lines of its own is shown as its source. */

import { fence } from "./partialMarkdown";

export interface Formula {
  /** With its delimiters. */
  readonly source: string;
  readonly tex: string;
  readonly display: boolean;
  /** Its end has not arrived yet. */
  readonly open: boolean;
}

export interface ShelteredText {
  /** The text with placeholders. */
  readonly text: string;
  /** What the placeholders replace: a formula, or a literal ⸨. */
  readonly originals: readonly (Formula | string)[];
}

/** The most characters of a formula that may contain blank lines, and of any other. */
const LONGEST_BLOCK = 4_000;
const LONGEST = 1_000;
/** The most characters that are held back after a single dollar: most often it is an amount. */
const LONGEST_HELD_BACK = 80;

/** The most characters of list and quote marks in a line before a formula. */
const LONGEST_MARKS = 80;

const PLACEHOLDER = /⸨(\d+)⸩/g;
const SPECIAL = /[`\\$⸨\n]|https?:\/\/|www\./g;
const ADDRESS = /[^\s<>`]*/y;
const BLANK_LINE = "\\n[ \\t>]*\\n";
const CLOSERS = {
  "\\(": new RegExp(`\\\\[\\s\\S]|${BLANK_LINE}`, "g"),
  "\\[": new RegExp(`\\\\[\\s\\S]|${BLANK_LINE}`, "g"),
  $$: new RegExp(`\\\\[\\s\\S]|\\$\\$|${BLANK_LINE}`, "g"),
} as const;
type Opener = keyof typeof CLOSERS;
const CLOSER: Readonly<Record<Opener, string>> = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };

export function shelter(source: string, running: boolean): ShelteredText {
  return new Scan(source, running).run();
}

/** The source of a text with placeholders. */
export function restore(text: string, originals: ShelteredText["originals"]): string {
  return text.includes("⸨") ? text.replace(PLACEHOLDER, (_, number: string) => sourceOf(originals[Number(number)])) : text;
}

function sourceOf(one: Formula | string | undefined): string {
  return typeof one === "string" ? one : (one?.source ?? "");
}

/** A text with placeholders as text and formulas. */
export function split(text: string, originals: ShelteredText["originals"]): (Formula | string)[] {
  const out: (Formula | string)[] = [];
  let at = 0;
  const append = (words: string): void => {
    const last = out.at(-1);
    if (words === "") return;
    if (typeof last === "string") out[out.length - 1] = last + words;
    else out.push(words);
  };
  for (const match of text.matchAll(PLACEHOLDER)) {
    append(text.slice(at, match.index));
    const one = originals[Number(match[1])] ?? "";
    if (typeof one === "string") append(one);
    else out.push(one);
    at = match.index + match[0].length;
  }
  append(text.slice(at));
  return out;
}

class Scan {
  private out = "";
  private readonly originals: (Formula | string)[] = [];
  /** Characters of the source that are in `out`. */
  private copyEnd = 0;
  private at = 0;
  /** Where the next closer of each kind is. So a text with many openers and no closer is searched
      once. */
  private readonly nextCloser: Record<Opener, number> = { "\\(": -1, "\\[": -1, $$: -1 };

  constructor(
    private readonly source: string,
    private readonly running: boolean,
  ) {}

  run(): ShelteredText {
    const { source } = this;
    const special = new RegExp(SPECIAL);
    this.skipFence();
    for (;;) {
      special.lastIndex = this.at;
      const match = special.exec(source);
      if (match === null) break;
      this.at = match.index;
      if (!this.step(match[0])) return { text: this.out, originals: this.originals };
    }
    return { text: this.out + source.slice(this.copyEnd), originals: this.originals };
  }

  /** Returns false where the rest is held back. */
  private step(sign: string): boolean {
    const { source } = this;
    switch (sign) {
      case "\n":
        this.at += 1;
        this.skipFence();
        return true;
      case "`":
        this.skipCode();
        return true;
      case "⸨":
        this.replace("⸨", this.at + 1);
        return true;
      case "\\": {
        const opener = source.slice(this.at, this.at + 2);
        if (opener === "\\(" || opener === "\\[") return this.readDelimited(opener);
        if (this.running && opener === "\\") return this.holdBack();
        this.at += 2;
        return true;
      }
      case "$": {
        const run = /\$+/y;
        run.lastIndex = this.at;
        const dollars = run.exec(source)?.[0].length ?? 1;
        if (dollars === 1) return this.readDollar();
        if (dollars === 2) return this.readDelimited("$$");
        this.at += dollars;
        return true;
      }
      default:
        ADDRESS.lastIndex = this.at;
        this.skip(this.at + (ADDRESS.exec(source)?.[0].length ?? 1));
        return true;
    }
  }

  private skipFence(): void {
    for (let code = fence(this.source, this.at); code !== null; code = fence(this.source, this.at)) this.skip(code.end);
  }

  /** Skips text without formulas. A literal ⸨ in it is replaced, so that it is not taken for a
      placeholder. */
  private skip(end: number): void {
    for (let place = this.source.indexOf("⸨", this.at); place !== -1 && place < end; place = this.source.indexOf("⸨", place + 1)) {
      this.at = place;
      this.replace("⸨", place + 1);
    }
    this.at = end;
  }

  private skipCode(): void {
    const { source } = this;
    const ticks = /`+/y;
    ticks.lastIndex = this.at;
    const length = ticks.exec(source)?.[0].length ?? 1;
    const rest = /`+|\n[ \t>]*\n/g;
    rest.lastIndex = this.at + length;
    for (let match = rest.exec(source); match !== null && match[0].startsWith("`"); match = rest.exec(source)) {
      if (match[0].length === length) return this.skip(match.index + length);
    }
    this.at += length;
  }

  private readDelimited(opener: Opener): boolean {
    const { source, at, running } = this;
    const before = (/(?:^|\n)([^\n]*)$/.exec(source.slice(Math.max(0, at - LONGEST_MARKS), at)) ?? [])[1] ?? "";
    const startsLine = before.length < LONGEST_MARKS && /^[ \t]*(?:(?:>|[-*+]|\d{1,9}[.)])[ \t]*)*$/.test(before);
    const alone = opener !== "\\(" && startsLine && /^[ \t]*(?:\n|$)/.test(source.slice(at + 2, source.indexOf("\n", at) + 1 || undefined));
    const end = this.closerEnd(opener, alone);
    if (typeof end === "number") {
      const tex = source.slice(at + 2, end - 2);
      if (tex.trim() === "" || (opener !== "$$" && isProse(tex))) this.at += 2;
      else this.replaceFormula(end, { tex: withoutQuoteMarks(tex, before), display: opener !== "\\(", open: false });
      return true;
    }
    if (end === "none" || !running) {
      this.at += 2;
      return true;
    }
    if (opener === "\\(" || !startsLine) return this.holdBack();
    const tex = source.slice(at + 2);
    if (tex.trim() === "" || /^\s*[A-Za-z]{3,} [A-Za-z]{3,}/.test(tex)) return this.holdBack();
    this.replaceFormula(source.length, { tex, display: true, open: true });
    return true;
  }

  /** The index after the closer; "open" where the closer can still arrive. */
  private closerEnd(opener: Opener, alone: boolean): number | "open" | "none" {
    const { source } = this;
    const from = this.at + 2;
    const most = from + (alone ? LONGEST_BLOCK : LONGEST);
    if (this.nextCloser[opener] < from) {
      const next = source.indexOf(CLOSER[opener], from);
      this.nextCloser[opener] = next === -1 ? source.length : next;
    }
    if (this.nextCloser[opener] > most) return "none";
    const ends = new RegExp(CLOSERS[opener]);
    ends.lastIndex = from;
    for (let match = ends.exec(source); match !== null; match = ends.exec(source)) {
      if (match.index > most) return "none";
      if (match[0] === CLOSER[opener]) return match.index + 2;
      if (match[0].startsWith("\n") && !alone) return "none";
    }
    return source.length <= most ? "open" : "none";
  }

  private readDollar(): boolean {
    const { source, at, running } = this;
    const after = source.charAt(at + 1);
    if (/[A-Za-z0-9]/.test(source.charAt(at - 1)) || /\s/.test(after)) {
      this.at += 1;
      return true;
    }
    const ends = /\\[\s\S]|[`$\n]/g;
    ends.lastIndex = at + 1;
    let match = ends.exec(source);
    while (match !== null && match[0].startsWith("\\")) match = ends.exec(source);
    if (match === null) {
      const tex = source.slice(at + 1);
      if (running && tex.length <= LONGEST_HELD_BACK && !/^\d/.test(tex) && !isProse(tex)) return this.holdBack();
      this.at += 1;
      return true;
    }
    const end = match.index;
    const tex = source.slice(at + 1, end);
    if (match[0] !== "$" || !isInline(tex, source.slice(end + 1, end + 4))) {
      this.at += 1;
      return true;
    }
    // A digit may follow, which would make it an amount.
    if (running && end + 1 === source.length) return this.holdBack();
    this.replaceFormula(end + 1, { tex, display: false, open: false });
    return true;
  }

  private holdBack(): false {
    this.out += this.source.slice(this.copyEnd, this.at);
    return false;
  }

  private replaceFormula(end: number, formula: Omit<Formula, "source">): void {
    this.replace({ source: this.source.slice(this.at, end), ...formula }, end);
  }

  private replace(one: Formula | string, end: number): void {
    this.out += `${this.source.slice(this.copyEnd, this.at)}⸨${this.originals.length}⸩`;
    this.originals.push(one);
    this.copyEnd = end;
    this.at = end;
  }
}

/** Whether the text between two dollars is a formula. `after`: the next characters. */
function isInline(tex: string, after: string): boolean {
  if (tex === "" || /\s$/.test(tex) || isProse(tex)) return false;
  // "the $n$th term", but not "$HOME/bin:$PATH".
  if (/^[A-Za-z]/.test(after) && !/^(?:st|nd|rd|th|s)(?![A-Za-z])/.test(after)) return false;
  if (/^\d/.test(after)) return false;
  // "$5 or 6€$" is about money.
  return !(/^\d/.test(tex) && !tex.includes("\\") && /[A-Za-z]{2}/.test(tex));
}

// Escaped brackets, or two prices in a sentence.
function isProse(tex: string): boolean {
  return !/[\\^_={}]/.test(tex) && /(?:^|\s)[A-Za-z]{2,},? [A-Za-z]{2,}(?:[\s,.;:!?]|$)/.test(tex);
}

/** Without the marks of a quote around it. */
function withoutQuoteMarks(tex: string, before: string): string {
  return /^[ \t]*>/.test(before) ? tex.replace(/\n[ \t]*(?:>[ \t]?)+/g, "\n") : tex;
}
