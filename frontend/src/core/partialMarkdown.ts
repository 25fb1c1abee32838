/* Partial Markdown: the text of a running answer may end anywhere, also inside `**bo` or half a
   fence. `drawable` returns the text to draw until more arrives. It holds back ambiguous ends (a
   marker, half a table head) and closes open marks. So a list does not first look like a headline,
   and bold text does not first show its asterisks. A finished answer is drawn unchanged. */

/** A last line that so far has only characters with which a list, headline, quote, rule, fence or
    table may begin. */
const ONLY_MARKERS = /^[ \t>]*(?:[-+*_=#`~|:]+|\d{1,9}[.)]?|[-+*][ \t]+\[[ xX]?\]?)?[ \t]*$/;
const OPENING_FENCE = /^[ \t]*(?:`{3,}[^`\n]*|~{3,}[^\n]*)$/;
/** A link definition, or the possible start of a footnote. */
const DEFINITION_SO_FAR = /^ {0,3}\[(?:[^\]\n^][^\]\n]*\]:|\^[^\]\s]*(?:\]:?[ \t]*)?$)/;
const DELIMITER_SO_FAR = /^[ \t|:-]*$/;

export function drawable(text: string): string {
  const start = text.lastIndexOf("\n") + 1;
  const lastLine = text.slice(start);
  if (insideFence(text.slice(0, start))) return FENCE_END.test(lastLine) ? text.slice(0, start) : text;
  if (DEFINITION_SO_FAR.test(lastLine)) return closeInline(text.slice(0, start));
  const head = tableHeadStart(text);
  if (head !== null) return closeInline(text.slice(0, head));
  return closeInline(ONLY_MARKERS.test(lastLine) || OPENING_FENCE.test(lastLine) ? text.slice(0, start) : text);
}

const FENCE_END = /^[ \t>]*(?:`+|~+)[ \t]*$/;

function insideFence(text: string): boolean {
  for (let at = 0; at < text.length; ) {
    const code = fence(text, at);
    if (code?.open === true) return true;
    at = code?.end ?? nextLine(text, at);
  }
  return false;
}

const FENCE_AT = /([ \t]*)((?:>[ \t]?|[-*+][ \t]+|\d{1,9}[.)][ \t]+)*)(`{3,}(?=[^`\n]*(?:\n|$))|~{3,})/y;

/** The end of the block of code that begins in this line; null where none begins. A block in a
    quote or in a list item ends with it at the latest. `open`: more text would belong to the block. */
export function fence(text: string, at: number): { readonly end: number; readonly open: boolean } | null {
  FENCE_AT.lastIndex = at;
  const [, indent = "", around = "", marks = ""] = FENCE_AT.exec(text) ?? [];
  if (marks === "") return null;
  const quoted = around.includes(">");
  const inItem = indent.length > 1 || /[-*+\d]/.test(around);
  for (let end = nextLine(text, at); end < text.length; ) {
    const next = nextLine(text, end);
    const line = text.slice(end, next).trimEnd();
    if (FENCE_END.test(line) && line.replace(/[ \t>]/g, "").startsWith(marks)) return { end: next, open: false };
    if (quoted ? !/^[ \t]*>/.test(line) : inItem && /^ ?[^ \t]/.test(line)) return { end, open: false };
    end = next;
  }
  return { end: text.length, open: true };
}

function nextLine(text: string, at: number): number {
  const newline = text.indexOf("\n", at);
  return newline === -1 ? text.length : newline + 1;
}

// A table is recognised by its second line. Until that line is complete, the head would be drawn as
// text with bars.
function tableHeadStart(text: string): number | null {
  const block = text.lastIndexOf("\n\n") + 1;
  const lines = text.slice(block).replace(/^\n/, "").split("\n");
  const head = lines.findIndex((line) => /^[ \t]*\|/.test(line));
  if (head === -1) return null;
  const after = lines.slice(head + 1);
  const undecided = after.length === 0 || (after.length === 1 && DELIMITER_SO_FAR.test(after[0] ?? ""));
  if (!undecided) return null;
  return text.length - lines.slice(head).join("\n").length;
}

/** Deeper nesting is not meant as emphasis, and closing it would only cost parsing time. */
const MOST_OPEN = 8;

interface OpenMark {
  mark: string;
  at: number;
}

// Closes emphasis, strikethrough and code that are open in the last paragraph.
function closeInline(text: string): string {
  const from = Math.max(text.lastIndexOf("\n\n"), text.lastIndexOf("\n- "), text.lastIndexOf("\n* "), -1) + 1;
  const body = text
    .slice(from)
    .replace(/(!?)\[([^[\]\n]*)\]\([^()\s]*$/, "$2")
    .replace(/\[(?:\^[^\]\s[]*)?$/, "");
  const head = text.slice(0, from);
  const open: OpenMark[] = [];
  for (let at = 0; at < body.length; ) {
    const sign = body.charAt(at);
    if (sign === "\\") {
      at += 2;
      continue;
    }
    const run = /^(`+|\*+|_+|~~)/.exec(body.slice(at))?.[0];
    if (run === undefined) {
      at += 1;
      continue;
    }
    if (sign === "`") {
      const end = closingTicks(body, at + run.length, run.length);
      if (end === -1) return head + closeCode(body, at, run, open);
      at = end;
      continue;
    }
    delimiter(body, at, run, open);
    at += run.length;
  }
  return head + closeAll(body, open);
}

function closingTicks(body: string, from: number, length: number): number {
  for (const run of body.slice(from).matchAll(/`+/g)) {
    if (run[0].length === length) return from + run.index + length;
  }
  return -1;
}

function closeCode(body: string, at: number, ticks: string, open: OpenMark[]): string {
  const content = body.slice(at + ticks.length);
  if (content.trim() === "") return closeAll(body.slice(0, at), open);
  // Ticks at the end are half of the closing run.
  return closeAll(content.endsWith("`") ? body.replace(/`+$/, "") + ticks : body + ticks, open);
}

function delimiter(body: string, at: number, run: string, open: OpenMark[]): void {
  const before = body.charAt(at - 1);
  const after = body.charAt(at + run.length);
  const mark = run.length > 2 ? run.slice(0, 3) : run;
  const opener = after !== "" ? /\S/.test(after) : true;
  const closer = before !== "" && /\S/.test(before);
  // An underscore inside a word is part of the word.
  if (run.startsWith("_") && /\w/.test(before) && /\w/.test(after)) return;
  const partner = closer ? open.findLastIndex((other) => other.mark === mark) : -1;
  if (partner !== -1) open.splice(partner);
  else if (opener && (before === "" || /[\s([{"'>*_~]/.test(before))) open.push({ mark, at });
}

function closeAll(body: string, open: OpenMark[]): string {
  let text = body;
  const marks = [...open];
  for (let last = marks.at(-1); last !== undefined && text.slice(last.at + last.mark.length).trim() === ""; last = marks.at(-1)) {
    text = text.slice(0, last.at);
    marks.pop();
  }
  if (marks.length === 0 || marks.length > MOST_OPEN) return text;
  // Half a closing run at the end ("**bold*") is completed, not doubled.
  const mark = marks.at(-1)?.mark ?? "";
  if (mark.length > 1 && text.endsWith(mark.charAt(0)) && !text.endsWith(mark)) text = text.replace(/[*_~]+$/, "");
  return text.trimEnd() + marks.reverse().map((each) => each.mark).join("");
}
