import { expect, it } from "vitest";
import { newAnswer } from "../../src/core/answer";
import { newConversation, newTurn, type Conversation } from "../../src/core/conversation";
import { findLocally } from "../../src/core/find";

function chat(id: string, question: string, text: string, name = ""): Conversation {
  const turn = { ...newTurn("t", null, question, null, "", 1), phase: "accepted" as const, answer: { ...newAnswer("r"), status: "completed" as const, text } };
  return { ...newConversation(id, 1), label: { name, pinned: false, at: 0 }, turns: [turn] };
}

const RIVERS = chat("rivers", "Which rivers are long?", `The Nile. ${"It flows. ".repeat(40)}The *Amazon* is long, too. ${"It flows. ".repeat(40)}`, "Rivers of the world");
const CODE = chat("code", "Reverse a list.", "words[::-1] reverses (it)");

function find(words: string): Record<string, string> {
  return Object.fromEntries(findLocally([RIVERS, CODE], words));
}

it("finds words in titles, questions and answers", () => {
  expect(find("WORLD rivers")).toEqual({ rivers: "" });
  expect(Object.keys(find("reverse"))).toEqual(["code"]);
  expect(find("amazon")["rivers"]).toMatch(/^….*The \*Amazon\* is long.*…$/);
  expect(find("amazon")["rivers"]?.length).toBeLessThan(190);
});

it("wants all words in one place", () => {
  expect(find("amazon list")).toEqual({});
  expect(Object.keys(find("amazon nile"))).toEqual(["rivers"]);
});

it.each(["[::", "(it", ".*"])("takes %s as it is", (words) => {
  expect(Object.keys(find(words))).toEqual(words === ".*" ? [] : ["code"]);
});

it("finds nothing without words, and nothing that changes its length", () => {
  expect(find("  ")).toEqual({});
  expect(Object.keys(Object.fromEntries(findLocally([chat("t", "İİİ", "plain")], "plain")))).toEqual(["t"]);
});
