import { expect, it } from "vitest";
import { apply, newAnswer, type Answer } from "../../src/core/answer";
import { answerFromResponse } from "../../src/core/replay";
import { parse, recorded, type Raw } from "../events";
import RECORDED from "../recorded.json";

function watch(events: Raw[], id: string): Answer {
  return events.reduce((answer, event) => apply(answer, parse(event), null).answer, newAnswer(id));
}

// They differ only in the number of pieces, which a Response object does not have.
const piecewise = { lastSeq: expect.any(Number) as number, deltas: expect.any(Number) as number };

it.each(Object.keys(RECORDED) as (keyof typeof RECORDED)[])("reads the Response of %s as if it had been watched", (name) => {
  const events = recorded(name);
  const end = events.at(-1)?.["response"] as { id: string; status: string; output?: unknown } | undefined;
  if (end?.output === undefined || !/completed|incomplete|failed/.test(events.at(-1)?.type ?? "")) return;
  const answer = watch(events, end.id);
  expect(answerFromResponse(end)).toEqual({ ...answer, ...piecewise });
});

it("reads reasoning that stands in its summary as if it had been watched", () => {
  const inSummary = (event: Raw): Raw => JSON.parse(JSON.stringify(event).replace(/reasoning_text/g, "reasoning_summary_text")) as Raw;
  const events = recorded("items").map(inSummary);
  const end = events.at(-1)?.["response"] as { id: string; output: Raw[] };
  const output = end.output.map((item) => (item.type === "reasoning" ? { ...item, summary: item["content"], content: [] } : item));
  expect(watch(events, end.id).text).not.toBe("");
  expect(answerFromResponse({ ...end, output })).toEqual({ ...watch(recorded("items"), end.id), ...piecewise });
  expect(watch(events, end.id)).toEqual(watch(recorded("items"), end.id));
});

it("begins one that runs anew", () => {
  expect(answerFromResponse({ id: "r", status: "in_progress", output: [{ type: "message", content: [{ type: "output_text", text: "half" }] }] })).toEqual(newAnswer("r"));
});

it.each([null, "x", 3, [], {}, { id: 3 }])("finds no answer in %j", (value) => expect(answerFromResponse(value)).toBeNull());

it("reads what is damaged as far as it makes sense", () => {
  const answer = answerFromResponse({ id: "r", status: "completed", output: [null, 3, { type: "message", content: "x" }, { type: "message", content: [{ text: 3 }, { type: "output_text", text: "good" }] }] });
  expect(answer).toMatchObject({ status: "completed", text: "good" });
});
