import { describe, expect, it } from "vitest";
import { apply, newAnswer, type Answer } from "../../src/core/answer";
import { resendWords, askProblem, continueProblem, endNote, problemWords, seamWords, modelNote } from "../../src/core/messages";
import { readableParts, messageText, type ReadablePart } from "../../src/core/reading";
import { parse, recorded, type Raw } from "../events";

function fold(events: readonly Raw[]): Answer {
  return events.reduce((answer, raw) => apply(answer, parse(raw), null).answer, newAnswer("resp_1"));
}

function withNotes(parts: readonly ReadablePart[]): string[] {
  return parts.map(({ text, seams }) => {
    const cuts = [0, ...seams.map(({ at }) => at), text.length];
    return seams.reduce((out, seam, place) => `${out}[${seamWords(seam)}]${text.slice(cuts[place + 1], cuts[place + 2])}`, text.slice(0, cuts[1]));
  });
}

/** An answer of this model that was cut short. */
function cut(text: string, model: string | null = "large"): Answer {
  return { ...newAnswer(text), status: "incomplete", reason: "max_output_tokens", continuable: true, text, model };
}

describe("an answer that other models continued", () => {
  const events = recorded("continued");

  it("is one text, with a notice where each of them goes on", () => {
    expect(withNotes(readableParts([fold(events)]))).toEqual(["One **two th[test-model stopped answering; small continues from here]ree** four.[small stopped answering; tiny continues from here] Five."]);
    expect(messageText([fold(events)])).toBe("One **two three** four. Five.");
  });

  it("tells the next model before its first word", () => {
    const place = events.findIndex(({ response }) => (response as { model?: string } | undefined)?.model === "small");
    expect(withNotes(readableParts([fold(events.slice(0, place))]))).toEqual(["One **two th"]);
    expect(withNotes(readableParts([fold(events.slice(0, place + 1))]))).toEqual(["One **two th[test-model stopped answering; small continues from here]"]);
  });

  it("only grows, event by event", () => {
    let before = "";
    for (let count = 0; count <= events.length; count += 1) {
      const text = messageText([fold(events.slice(0, count))]);
      expect(text.startsWith(before)).toBe(true);
      before = text;
    }
  });

  it("names who began, not who ended, where both stood in for the model that was asked", () => {
    const answer = { ...fold(events), asked: "large" };
    expect(modelNote(answer)).toBe("Answered by test-model: large was not available.");
    expect(modelNote(fold(events))).toBeNull();
  });
});

describe("an answer of several responses", () => {
  it("is one text without anything between them", () => {
    expect(readableParts([fold(recorded("shortened")), fold(recorded("more"))])).toMatchObject([{ kind: "message", text: "Once upon a time.", seams: [] }]);
    expect(messageText([cut("One "), cut("two "), cut("three.")])).toBe("One two three.");
  });

  it("is what came so far while the next one has no word yet", () => {
    expect(messageText([cut("One \ufffd"), newAnswer("r")])).toBe("One \ufffd");
  });

  it("has a character whole that the bound cut in two", () => {
    expect(messageText([cut("One \ufffd"), cut("\u{1f600} two.")])).toBe("One \u{1f600} two.");
  });

  it("says where another model goes on, and nothing where the same one does", () => {
    expect(withNotes(readableParts([cut("One "), cut("two ", "small"), cut("three.", "small")]))).toEqual(["One [small continues from here]two three."]);
    expect(withNotes(readableParts([cut("One "), cut("two.", null)]))).toEqual(["One two."]);
  });

  it("keeps what is no text apart", () => {
    const parts = readableParts([cut("One."), fold(recorded("items"))]);
    expect(parts.map(({ kind }) => kind)).toEqual(["message", "reasoning", "message", "function", "function", "message"]);
  });
});

describe("words", () => {
  it("say that the answer is cut short because the service was busy, and no other reason then", () => {
    expect(endNote(fold(recorded("shortened")))?.words).toBe("Cut short, because the service was busy.");
    expect(endNote({ ...fold(recorded("shortened")), shortened: false })?.words).toBe("Cut off: the length limit was reached.");
    expect(endNote({ ...fold(recorded("more")), shortened: true })).toBeNull();
  });

  it("say who answered instead of the model that was asked", () => {
    expect(modelNote({ ...newAnswer("r"), model: "small", asked: "large" })).toBe("Answered by small: large was not available.");
    expect(modelNote({ ...newAnswer("r"), model: "large", asked: "large" })).toBeNull();
    expect(modelNote({ ...newAnswer("r"), model: "large", cached: true })).toContain("the same answer");
  });

  it("say when a refused question is sent again, and when to try", () => {
    expect(resendWords({ status: 429, until: 10_000 }, 6_800)).toBe("The service is busy. Your question is sent again in 4 s.");
    const problem = askProblem(429, { code: "rate_limit_exceeded", message: "" }, { status: 429, until: 41_200 }, 0);
    expect(problem).toMatchObject({ again: true, words: expect.stringContaining("in 42 s") as string });
    expect(problemWords(problem, 1_200)).toContain("Try again in 40 s.");
    expect(problemWords(problem, 41_200)).toContain("Try again now.");
    const late = askProblem(503, { code: "x", message: "" }, { status: 503, until: new Date(2030, 1, 1, 14, 32).getTime() }, 0);
    expect(late.words).toMatch(/Try again at 2:32\sPM\.$/);
  });

  it("say that an answer is gone and cannot be continued", () => {
    expect(continueProblem(400, { code: "previous_response_not_found", message: "gone" }, null, 0)).toMatchObject({ again: false, words: expect.stringContaining("no longer") as string });
    expect(continueProblem(503, { code: "x", message: "" }, null, 0)).toMatchObject({ again: true });
  });
});
