import { describe, expect, it } from "vitest";
import { apply, moreAdvanced, isRunning, markLost, newAnswer, type Answer } from "../../src/core/answer";
import { parse, series, type Raw } from "../events";

const PIECES = ["Hel", "lo", ", ", "wor", "ld."];

function fold(events: readonly Raw[], from: Answer = newAnswer("resp_1"), seenAt: number | null = null): Answer {
  return events.reduce((answer, raw) => apply(answer, parse(raw), seenAt).answer, from);
}

describe("the fold of one response", () => {
  const events = series("resp_1", PIECES);

  it("gives the text and the end", () => {
    const answer = fold(events);
    expect(answer).toMatchObject({ text: "Hello, world.", status: "completed", lastSeq: events.length - 1, model: "test-model", usage: { input: 4, output: 5 } });
  });

  it("is the same wherever it was cut and however far the replay overlaps", () => {
    const whole = fold(events);
    for (let cut = 0; cut <= events.length; cut += 1) {
      for (let back = 0; back <= cut; back += 1) {
        const copy = JSON.parse(JSON.stringify(fold(events.slice(0, cut)))) as Answer;
        expect(fold(events.slice(back), copy)).toEqual(whole);
      }
    }
  });

  it("takes each event once, also when all come twice in a row", () => {
    expect(fold(events.flatMap((event) => [event, event]))).toEqual(fold(events));
  });

  it("stops at a gap and changes nothing until the missing event comes", () => {
    const before = fold(events.slice(0, 6));
    const early = apply(before, parse(events[7] as Raw), null);
    expect(early.verdict).toBe("gap");
    expect(early.answer).toBe(before);
    expect(fold(events.slice(6), before)).toEqual(fold(events));
  });

  it("keeps the files that are cited, each once, and no call of their search", () => {
    const searched = [...events];
    const note = (filename: string): Raw => ({ type: "response.output_text.annotation.added", sequence_number: 0, annotation: { type: "file_citation", filename } });
    const call = [{ type: "response.output_item.added", sequence_number: 0, item: { type: "file_search_call" } }, { type: "response.output_item.done", sequence_number: 0, item: { type: "file_search_call" } }];
    const at = searched.findIndex((event) => event["delta"] === "lo") + 1;
    searched.splice(at, 0, note("a.md"), note("b.md"), note("a.md"));
    searched.splice(2, 0, ...call);
    const answer = fold(searched.map((event, seq) => ({ ...event, sequence_number: seq })));
    expect(answer).toMatchObject({ text: "Hello, world.", status: "completed", sources: ["a.md", "b.md"] });
    expect(answer.items).toHaveLength(1);
  });

  it("takes nothing after the end", () => {
    const done = fold(events);
    const late = { type: "response.output_text.delta", sequence_number: events.length, delta: "more" };
    expect(apply(done, parse(late), null).answer).toBe(done);
  });

  it("takes the server's whole text over its own pieces, and says so", () => {
    const upToText = events.findIndex((event) => event.type === "response.output_text.done");
    const wrong = { ...fold(events.slice(0, upToText)), text: "Hello, wor" };
    const { answer, corrected } = apply(wrong, parse(events[upToText] as Raw), null);
    expect(corrected).toBe(true);
    expect(answer.text).toBe("Hello, world.");
  });

  it.each([
    [{ type: "response.incomplete", status: "cancelled" }, "cancelled", null],
    [{ type: "response.incomplete", reason: "max_output_tokens" }, "incomplete", "max_output_tokens"],
    [{ type: "response.failed", error: { code: "server_error", message: "the engine died" } }, "failed", null],
  ] as const)("knows the end %j as %s", (ending, status, reason) => {
    const answer = fold(series("resp_1", PIECES, ending));
    expect(answer).toMatchObject({ status, reason, text: "Hello, world." });
    expect(isRunning(answer)).toBe(false);
  });

  it("counts events of a type it does not know", () => {
    const [first, ...rest] = events;
    const start = fold([first as Raw]);
    const strange = { type: "response.something_new", sequence_number: 1 };
    expect(fold([strange], start).lastSeq).toBe(1);
    expect(fold(rest.map((event) => ({ ...event, sequence_number: event.sequence_number + 1 })), fold([strange], start)).text).toBe("Hello, world.");
  });
});

describe("the sight of the first and the last piece", () => {
  const events = series("resp_1", PIECES);

  it("is kept when it was live", () => {
    let answer = newAnswer("resp_1");
    events.forEach((event, place) => (answer = apply(answer, parse(event), 1000 + place * 10).answer));
    expect(answer).toMatchObject({ firstAt: 1050, lastAt: 1090 });
  });

  it("is unknown in a replay, and known again for what comes live", () => {
    const replayed = fold(events.slice(0, 8));
    expect(replayed).toMatchObject({ firstAt: null, lastAt: null });
    expect(fold(events.slice(8), replayed, 5000)).toMatchObject({ firstAt: null, lastAt: 5000 });
  });
});

describe("of two folds of one response", () => {
  const folds = series("resp_1", PIECES).map((_, cut) => fold(series("resp_1", PIECES).slice(0, cut)));

  it("the further one is taken, in either order", () => {
    for (const a of folds) for (const b of folds) {
      expect(moreAdvanced(a, b)).toEqual(moreAdvanced(b, a));
      expect(moreAdvanced(a, b).lastSeq).toBe(Math.max(a.lastSeq, b.lastSeq));
    }
  });

  it("an end from the stream stands above a loss, and a loss above what still runs", () => {
    const running = folds[7] as Answer;
    const answer = markLost(running, { code: "history_lost", message: "gone" });
    const done = fold(series("resp_1", PIECES));
    expect(moreAdvanced(running, answer).status).toBe("lost");
    expect(moreAdvanced(done, answer).status).toBe("completed");
  });

  it("the time of the first piece is kept from the live view", () => {
    const early = { ...(folds[6] as Answer), firstAt: 1000 };
    expect(moreAdvanced(early, folds[9] as Answer)).toMatchObject({ lastSeq: 8, firstAt: 1000 });
  });
});
