import { describe, expect, it } from "vitest";
import { isLong } from "../../src/core/question";

describe("a question is long", () => {
  it.each([
    ["", false],
    ["One line.", false],
    ["line\n".repeat(11) + "line", false],
    ["line\n".repeat(12) + "line", true],
    ["w".repeat(900), false],
    ["w".repeat(1201), true],
    [`${"w".repeat(90)}\n`.repeat(6), true],
  ])("%# ", (question, long) => expect(isLong(question)).toBe(long));
});
