import { expect, it } from "vitest";
import { titleIn, withoutMarks } from "../../src/core/titles";

it.each([
  ["Counting to three", "Counting to three"],
  ['"Counting to three."\nand more', "Counting to three"],
  ["\n\n  ## **Title:** A river  ", "A river"],
  ["„Zählen bis drei“", "Zählen bis drei"],
  ["1. First", "First"],
  ["  \n ", ""],
  ["", ""],
])("finds the title in %j", (text, title) => expect(titleIn(text)).toBe(title));

it("cuts what is too long behind a word", () => {
  const title = titleIn("word ".repeat(40));
  expect(title).toBe(`${"word ".repeat(11).trimEnd()}…`);
  expect(titleIn("x".repeat(200))).toHaveLength(60);
});

it.each([
  ["Make it **bold** and *soft*, ***both***", "Make it bold and soft, both"],
  ["Make it __very bold__ and _soft_, ~~not~~ now", "Make it very bold and soft, not now"],
  ["**Use `map` here**", "Use map here"],
  ["**Very *soft* words**", "Very soft words"],
  ["# A heading #\n\n### And another", "A heading\n\nAnd another"],
  ["What is ``a ` tick``?", "What is a ` tick?"],
  ["Explain:\n```python\nx = **y**\n```\nPlease.", "Explain:\nx = **y**\n\nPlease."],
  ["Read [this *page*](https://a.test/x_y_z (title)) and ![a picture](p.png)", "Read this page and a picture"],
  ["See <https://a.test/a_b_c>", "See https://a.test/a_b_c"],
])("takes the marks of Markdown out of %j", (question, title) => expect(withoutMarks(question)).toBe(title));

it.each(["What is 2 * 3 * 4?", "What is 2**3**2 and 2*3*4?", "Why is snake_case_name so?", "What does __init__ do?", "Is C# like F# ?", "#hashtag", "a[0](x) and a[0][1]", "`", "** and **", "1 < 2 > 0", "~/a and ~/b"])(
  "leaves what is no mark: %j",
  (question) => expect(withoutMarks(question)).toBe(question),
);

it("takes code as it is written", () => {
  expect(withoutMarks("Run `a*b*c`, `__init__` and `[x](y)`")).toBe("Run a*b*c, __init__ and [x](y)");
});
