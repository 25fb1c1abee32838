const LONGEST = 60;

/** The title in a model's answer to the request for one: the first line, without marks around it.
    Empty: none. */
export function titleIn(text: string): string {
  const line = text.split("\n").find((each) => each.trim() !== "") ?? "";
  const bare = line
    .replace(/^\s*(#+|[-*]|\d+\.)\s+/, "")
    .replace(/^\s*\**title\**\s*:\s*/i, "")
    .replace(/[*_`]/g, "")
    .replace(/\s+/g, " ")
    .trim()
    .replace(/^["'“”„«»‘’]+|["'“”«»‘’.]+$/g, "")
    .trim();
  if (bare.length <= LONGEST) return bare;
  const cut = bare.slice(0, LONGEST - 1);
  return `${cut.slice(0, cut.lastIndexOf(" ") > LONGEST / 2 ? cut.lastIndexOf(" ") : undefined).trimEnd()}…`;
}

/** Inline code, or a block between fences: the same number of backticks before and after it. */
const CODE = /(?<!`)(`+)(?!`)([^]*?[^`])\1(?!`)/g;
/** Replaces code while the other marks are removed. */
const PLACEHOLDER = /\ue000(\d+)\ue001/g;
const LINK = /(?<![\w\]])!?\[([^[\]]+)\]\((?:[^()]|\([^()]*\))*\)/g;
/** Text with a space at its ends is not emphasis. A mark inside a word may belong to a product, a
    power or a name, and two underscores at each end of one word are a name. */
const EMPHASIS = [
  /(?<![\w*])(\*{1,3})(?![\s*])([^*]*[^*\s])\1(?![\w*])/g,
  /(?<!\w)(_)(?![\s_])([^_]*[^_\s])\1(?!\w)/g,
  /(?<!\w)(__)(?![\s_])([^_]*\s[^_]*[^_\s])\1(?!\w)/g,
  /(?<!~)(~~)(?![\s~])([^~]*[^~\s])\1(?!~)/g,
];

/** A question without Markdown marks for emphasis, code, links and headings. It is used as a name,
    so an ambiguous mark stays. */
export function withoutMarks(question: string): string {
  const codes: string[] = [];
  const replaceCode = (_: string, ticks: string, code: string): string => {
    // The first line of a block names its language.
    const text = ticks.length < 3 ? code : code.replace(/^[^\n]*\n/, "");
    return `\ue000${codes.push(text) - 1}\ue001`;
  };
  const plain = question
    .replace(CODE, replaceCode)
    .replace(/^ {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/gm, "$1")
    .replace(LINK, "$1")
    .replace(/<(https?:\/\/[^<>\s]+)>/g, "$1");
  // Twice, because there may be emphasis within emphasis.
  return [...EMPHASIS, ...EMPHASIS].reduce((text, mark) => text.replace(mark, "$2"), plain).replace(PLACEHOLDER, (placeholder, at: string) => codes[Number(at)] ?? placeholder);
}
