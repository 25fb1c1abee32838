import { describe, expect, it } from "vitest";
import { speech } from "../../src/core/speech";

describe("what is read aloud", () => {
  it.each<[string, string, string]>([
    ["plain text", "One. Two", "One. Two."],
    ["emphasis, links and pictures", "**Yes**, *really*: [this](https://x.example) and ![a cat](https://x.example/c.png) `x`", "Yes, really: this and a cat x."],
    ["headings and paragraphs", "# Title\n\nText\nnext line\n\n---\n\n> quoted", "Title. Text next line. quoted."],
    ["lists", "3. three\n4. four\n   - inner\n\n- [x] done it\n- plain!", "3. three. 4. four. inner. done: done it. plain!"],
    ["tables", "| a | b |\n|---|---|\n| 1 | 2 |", "a, b. 1, 2."],
    ["code", "Look:\n\n```python\nprint(1)\nprint(2)\n```\n\n```\nx\n```", "Look: Code in python: 2 lines. Code: 1 line."],
    ["formulas", "So $x^2$ is\n\n$$\\frac12$$", "So x^2 is. \\frac12."],
    ["footnotes", "Word[^1].\n\n[^1]: A note.", "Word. 1. A note."],
    ["what is no markup", "2 * 3 * 4 <b>", "2 * 3 * 4 <b>."],
    ["nothing", "", ""],
  ])("has none of the signs of %s", (_, markdown, expected) => {
    expect(speech(markdown)).toBe(expected);
  });
});
