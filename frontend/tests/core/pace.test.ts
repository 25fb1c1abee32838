import { describe, expect, it } from "vitest";
import { newAnswer } from "../../src/core/answer";
import { pace, paceWords, seconds } from "../../src/core/pace";

const answer = { ...newAnswer("r"), status: "completed" as const, deltas: 40, firstAt: 1300, lastAt: 3300, usage: { input: 5, output: 101 } };

describe("the pace of an answer", () => {
  it("counts the tokens after the first over the time since the first", () => {
    expect(pace(answer, 1000)).toEqual({ firstTokenMs: 300, tokensPerSecond: 50, tokens: 101, exact: true });
    expect(paceWords(pace(answer, 1000))).toEqual(["first token 300 ms", "50 tokens/s", "101 tokens"]);
  });

  it("counts the tokens of what it continues, and nothing of its pace", () => {
    const before = { ...answer, firstAt: 1, usage: { input: 5, output: 16 } };
    expect(pace(answer, 1000, [before])).toEqual({ firstTokenMs: 300, tokensPerSecond: 50, tokens: 117, exact: true });
    expect(pace(answer, 1000, [{ ...before, usage: null }])).toMatchObject({ tokensPerSecond: 50, tokens: null });
  });

  it("is called approximate while it only counts pieces", () => {
    expect(paceWords(pace({ ...answer, status: "in_progress", usage: null }, 1000))).toEqual(["first token 300 ms", "≈ 20 tokens/s"]);
  });

  it("says nothing that was not seen live", () => {
    expect(paceWords(pace({ ...answer, firstAt: null }, 1000))).toEqual(["101 tokens"]);
    expect(paceWords(pace({ ...answer, lastAt: null }, 1000))).toEqual(["first token 300 ms", "101 tokens"]);
    expect(paceWords(pace({ ...answer, lastAt: 1301 }, 1000))).toEqual(["first token 300 ms", "101 tokens"]);
  });

  it("names times as people do", () => {
    expect([seconds(17), seconds(1234), seconds(12_345), seconds(65_000)]).toEqual(["17 ms", "1.2 s", "12 s", "1 min 5 s"]);
  });
});
