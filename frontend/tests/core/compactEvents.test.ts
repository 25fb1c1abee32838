import { describe, expect, it } from "vitest";
import { expand, type Watches } from "../../src/core/compactEvents";
import { readMessage } from "../../src/core/protocol";
import { recorded, type Raw } from "../events";
import COMPACT from "../recordedCompact.json";

const ID = "resp_AXBhZ2UABQAAAAAABgABAgMEBQYHCAkK";
const delta = (seq: number, text: string): object => ({ type: "response.output_text.delta", sequence_number: seq, item_id: "msg_1", output_index: 0, content_index: 0, delta: text, logprobs: [] });
const begin = (number: number, id: string, ...events: unknown[]): object => ({ type: "watch.events", response_id: id, number, events });

/** The expanded messages of one socket, each event as JSON. */
function expandAll(...messages: unknown[]): unknown[] {
  const watches: Watches = new Map();
  return messages.map((message) => {
    const expanded = expand(structuredClone(message), watches) as { response_id: string; events: object[] } | null;
    return expanded && [expanded.response_id, ...expanded.events.map((event) => JSON.stringify(event))];
  });
}

describe("what the services send in the compact form", () => {
  it.each(Object.keys(COMPACT) as (keyof typeof COMPACT)[])("is %s, member by member", (name) => {
    const whole: Raw[] = recorded(name);
    const watches: Watches = new Map();
    const events = COMPACT[name].flatMap((message) => {
      const messages = expand(message, watches) as { type: string; response_id: string; events: Raw[] };
      expect([messages.type, messages.response_id]).toEqual(["watch.events", ID]);
      return messages.events;
    });
    const again = events.findIndex((event, place) => place > 0 && event.sequence_number !== (events[place - 1]?.sequence_number ?? 0) + 1);
    const words = (some: Raw[]): string[] => some.map((event) => JSON.stringify(event));
    expect(words(events.slice(0, again))).toEqual(words(whole.slice(0, Math.floor(whole.length / 2))));
    expect(words(events.slice(again))).toEqual(words(whole.slice(Math.floor(whole.length / 4))));
    expect(COMPACT[name].flat().filter((entry) => typeof entry === "string").length).toBeGreaterThan(0);
  });

  it("is read as what the first version sends", () => {
    const watches: Watches = new Map();
    const incoming = COMPACT.items.map((message) => readMessage(JSON.stringify(message), watches));
    const plain = recorded("items");
    const [first, second] = [plain.slice(0, Math.floor(plain.length / 2)), plain.slice(Math.floor(plain.length / 4))].map((events) =>
      readMessage(JSON.stringify({ type: "watch.events", response_id: ID, events }), new Map()),
    );
    const events = (message: unknown): unknown[] => (message as { events: unknown[] }).events;
    expect(incoming.flatMap(events)).toEqual([first, second].flatMap(events));
  });
});

describe("a socket with compact events", () => {
  it("has several responses, whose numbers may be told anew", () => {
    const messages = expandAll(begin(0, "a", delta(4, "A"), "b"), begin(1, "b", delta(9, "X")), [0, "c"], [1, "y", "z"], begin(0, "c", delta(2, "1")), [0, "2"], [1, { type: "t", sequence_number: 12 }, "!"]);
    const frame = (seq: number, text: string): string => JSON.stringify(delta(seq, text));
    expect(messages).toEqual([
      ["a", frame(4, "A"), frame(5, "b")],
      ["b", frame(9, "X")],
      ["a", frame(6, "c")],
      ["b", frame(10, "y"), frame(11, "z")],
      ["c", frame(2, "1")],
      ["c", frame(3, "2")],
      ["b", '{"type":"t","sequence_number":12}', frame(13, "!")],
    ]);
  });

  it("numbers texts behind an event that repeats a number", () => {
    const [, messages] = expandAll(begin(0, "a", delta(4, "A")), [0, { type: "response.queued", sequence_number: 4, queue: {} }, "b"]);
    expect((messages as unknown[])[2]).toBe(JSON.stringify(delta(5, "b")));
  });

  it.each([
    ["an unknown number", [1, "b"]],
    ["no number", ["0", "b"]],
    ["nothing", []],
  ])("does not read %s, and goes on", (_, message) => {
    expect(expandAll(begin(0, "a", delta(4, "A")), message, [0, "b"])).toEqual([["a", JSON.stringify(delta(4, "A"))], null, ["a", JSON.stringify(delta(5, "b"))]]);
  });

  it.each([
    ["a text that stands for nothing", begin(0, "a", { type: "t", sequence_number: 1 }, "b")],
    ["an event that is none", [0, "b", 7]],
    ["an event without a number", [0, { type: "t" }]],
    ["an event with an odd number", [0, { type: "t", sequence_number: 1.5 }]],
    ["a list in a list", [0, ["b"]]],
    ["a watch of nothing", { type: "watch.events", number: 0, events: [] }],
    ["a watch without events", { type: "watch.events", response_id: "a", number: 0 }],
  ])("reads no text behind %s until the watch is told again", (_, message) => {
    const messages = expandAll(begin(0, "a", delta(4, "A")), message, [0, "c"], [0, delta(7, "d")], begin(0, "a", delta(5, "b")), [0, "c"]);
    expect(messages.slice(1)).toEqual([null, null, null, ["a", JSON.stringify(delta(5, "b"))], ["a", JSON.stringify(delta(6, "c"))]]);
  });

  it.each([-1, 0.5, "0", null])("has no watch with the number %j", (number) => {
    expect(expand({ ...begin(0, "a", delta(4, "A")), number }, new Map())).toBeNull();
  });

  it("leaves every other message as it is", () => {
    for (const message of [null, 7, "x", { type: "watch.done", response_id: "a" }, { type: "watch.events", response_id: "a", events: [] }]) expect(expand(message, new Map())).toBe(message);
  });
});
