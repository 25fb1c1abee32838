import { describe, expect, it } from "vitest";
import { placeWords } from "../../src/core/messages";
import { readEvent, readMessage as readOn, type Incoming } from "../../src/core/protocol";

const readMessage = (raw: string): Incoming | null => readOn(raw, new Map());

describe("a message on the watch socket", () => {
  it.each(["", "nothing", "[]", "null", "7", '"watch.events"', "{}", '{"type":"watch.events"}', '{"type":"watch.events","response_id":"r","events":{}}', '{"type":"watch.done"}', '{"type":"unheard.of"}'])(
    "that makes no sense is not read: %s",
    (raw) => expect(readMessage(raw)).toBeNull(),
  );

  it("keeps its good events when one of them is bad", () => {
    const raw = JSON.stringify({
      type: "watch.events",
      response_id: "r",
      events: [null, 3, { type: "response.created" }, { type: "response.created", sequence_number: 0 }, { type: "x", sequence_number: 1.5 }, { type: "response.output_text.delta", sequence_number: 1, delta: 7 }],
    });
    expect(readMessage(raw)).toEqual({ kind: "events", responseId: "r", events: [{ kind: "other", seq: 0 }] });
  });

  it("of an error always has a code and words", () => {
    expect(readMessage('{"type":"watch.error","response_id":null}')).toMatchObject({ kind: "error", responseId: null, fault: { code: "unknown" } });
  });
});

describe("an event", () => {
  it("of an end with an odd response inside is an end all the same", () => {
    expect(readEvent({ type: "response.failed", sequence_number: 4, response: "?" })).toEqual({ kind: "end", seq: 4, outcome: "failed", reason: null, usage: null, fault: null, serving: null });
  });
});

describe("who answers", () => {
  const parse = (response: object): unknown => readEvent({ type: "response.in_progress", sequence_number: 2, response });
  const alone = { model: null, asked: null, segments: [], shortened: false, cached: false, continuable: false };

  it("is read with all that the response says", () => {
    const items = [{ output_index: 0, model: "large" }, { output_index: 1, model: "small" }];
    expect(parse({ model: "small", fallback: { from: "large", items }, shortened: { from: 9, to: 4 }, cached_answer: true, continue: true })).toEqual({
      kind: "status",
      seq: 2,
      status: "in_progress",
      serving: { model: "small", asked: "large", segments: [{ item: 0, model: "large" }, { item: 1, model: "small" }], shortened: true, cached: true, continuable: true },
    });
  });

  it.each([
    {},
    { model: 7, fallback: "large", shortened: true, cached_answer: 1, continue: "true" },
    { model: "", fallback: { from: null, items: {} }, shortened: null },
    { fallback: { items: [null] } },
    { fallback: { items: [{ output_index: 0, model: "a" }, { output_index: 0, model: "b" }] } },
    { fallback: { items: [{ output_index: -1, model: "a" }] } },
  ])("is nobody where it makes no sense: %j", (response) => expect(parse(response)).toMatchObject({ serving: alone }));

  it("has a name of bounded length", () => {
    expect(parse({ model: "m".repeat(5000) })).toMatchObject({ serving: { model: "m".repeat(200) } });
  });
});

describe("a search in files", () => {
  const parse = (annotation: unknown): unknown => readEvent({ type: "response.output_text.annotation.added", sequence_number: 9, annotation });

  it("is no item of the answer, and another model's item counts without it", () => {
    const output = [{ type: "file_search_call" }];
    expect(readEvent({ type: "response.output_item.added", sequence_number: 2, item: { type: "file_search_call" } })).toEqual({ kind: "other", seq: 2 });
    const items = [{ output_index: 0, model: "a" }, { output_index: 2, model: "b" }];
    const event = { type: "response.in_progress", sequence_number: 8, response: { model: "b", output, fallback: { from: "a", items } } };
    expect(readEvent(event)).toMatchObject({ serving: { segments: [{ item: 0, model: "a" }, { item: 1, model: "b" }] } });
  });

  it("is cited by the name of a file, and any other annotation still counts", () => {
    expect(parse({ type: "file_citation", filename: "a.md", index: 4 })).toEqual({ kind: "cited", seq: 9, file: "a.md" });
    expect(parse({ type: "file_citation", filename: "n".repeat(5000) })).toMatchObject({ file: "n".repeat(200) });
    for (const other of [null, {}, { type: "url_citation", filename: "a" }, { type: "file_citation", filename: "" }]) expect(parse(other)).toEqual({ kind: "other", seq: 9 });
  });
});

describe("a place in the queue", () => {
  const parse = (queue: unknown): unknown => readEvent({ type: "response.queued", sequence_number: 1, queue });

  it("is read with what the server knows", () => {
    expect(parse({ position: 12, eta_s: 8.5 })).toEqual({ kind: "place", seq: 1, place: { position: 12, etaS: 8.5, atLeast: false } });
    expect(parse({ position: 2000, at_least: true })).toEqual({ kind: "place", seq: 1, place: { position: 2000, etaS: null, atLeast: true } });
    expect(parse({ position: 0, eta_s: -1 })).toMatchObject({ place: { etaS: null } });
  });

  it.each([null, {}, { position: -1 }, { position: 1.5 }, "3"])("that makes no sense is left out: %j", (queue) => expect(parse(queue)).toBeNull());

  it("is in words", () => {
    expect(placeWords({ position: 3, etaS: 8.4, atLeast: false })).toBe("3 requests before yours, about 8 s");
    expect(placeWords({ position: 1, etaS: 0.2, atLeast: false })).toBe("1 request before yours, about 1 s");
    expect(placeWords({ position: 0, etaS: null, atLeast: false })).toBe("Your question is next…");
    expect(placeWords({ position: 2000, etaS: 240, atLeast: true })).toBe("At least 2000 requests before yours, about 4 minutes");
  });
});
