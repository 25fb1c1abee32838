import { describe, expect, it } from "vitest";
import { readEvent, readMessage } from "../../src/core/protocol";

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
    expect(readEvent({ type: "response.failed", sequence_number: 4, response: "?" })).toEqual({ kind: "end", seq: 4, outcome: "failed", reason: null, usage: null, fault: null, model: null });
  });
});
