import { describe, expect, it } from "vitest";
import { apply, MAX_ITEMS, newAnswer, parts, readAnswer, MAX_SIDE_CHARACTERS, type Answer } from "../../src/core/answer";
import { readEvent } from "../../src/core/protocol";
import { messageText } from "../../src/core/reading";
import { parse, recorded, type Raw } from "../events";

function fold(events: readonly Raw[], from: Answer = newAnswer("resp_1")): Answer {
  return events.reduce((before, raw) => {
    const { answer, corrected } = apply(before, parse(raw), null);
    expect(corrected).toBe(false);
    return answer;
  }, from);
}

function brief(answer: Answer): string[] {
  return parts(answer).map(({ kind, name, text, state }) => `${kind} ${name} ${text} ${state}`.replace(/ +/g, " "));
}

const ALL = [
  "reasoning I think 天気. whole",
  "message Let me < see. whole",
  'function weather {"city":"Zürich"} whole',
  'function weather {"city":"Łódź"} whole',
  "message So. whole",
];

describe("an answer of several items", () => {
  const events = recorded("items");
  const whole = fold(events);

  it("has them all in order, and the end", () => {
    expect(brief(whole)).toEqual(ALL);
    expect(whole).toMatchObject({ status: "completed", lastSeq: events.length - 1, more: 0 });
  });

  it("says only its messages", () => {
    expect(messageText([whole])).toBe("Let me < see.\n\nSo.");
  });

  it("is the same wherever it was cut, kept and gone on with, however far the replay overlaps", () => {
    for (let cut = 0; cut <= events.length; cut += 1) {
      const copy = readAnswer(JSON.parse(JSON.stringify(fold(events.slice(0, cut)))) as Answer);
      for (const back of [0, Math.max(0, cut - 3), cut]) expect(fold(events.slice(back), copy)).toEqual(whole);
    }
  });

  it("grows in the middle of arguments", () => {
    const at = events.findIndex(({ type }) => type === "response.function_call_arguments.delta");
    const half = fold(events.slice(0, at + 2));
    expect(brief(half).slice(2)).toEqual(['function weather {"city open']);
  });

  it("agrees with the server's object", () => {
    const output = (events.at(-1) as Raw & { response: { output: Record<string, unknown>[] } }).response.output;
    expect(output.map((item) => item["arguments"] ?? (item["content"] as { text: string }[])[0]?.text)).toEqual(parts(whole).map(({ text }) => text));
  });
});

describe("an item", () => {
  it("that the answer ended in is cut, and those before it are whole", () => {
    expect(brief(fold(recorded("cut")))).toEqual(["reasoning Short. whole", 'function geo.weather {"city": "Zür cut']);
    expect(brief(fold(recorded("thoughts")))).toEqual(["reasoning I never came to an end cut"]);
    expect(messageText([fold(recorded("thoughts"))])).toBe("");
  });

  it("that calls a custom tool has its input", () => {
    expect(brief(fold(recorded("custom")))).toEqual(["custom shell ls -la\necho <b>done</b> whole"]);
  });

  it("of each kind has its whole text stated", () => {
    for (const name of ["items", "custom"] as const) {
      const events = recorded(name).map(parse);
      const statements = events.flatMap((event) => (event.kind === "text" ? [`${event.item} ${event.text}`] : []));
      expect(statements).toEqual(parts(fold(recorded(name))).map(({ kind, text }) => `${kind} ${text}`));
    }
  });

  it("of an unknown kind counts in the sequence", () => {
    expect(readEvent({ type: "response.output_item.added", sequence_number: 3, item: { type: "image" } })).toEqual({ kind: "other", seq: 3 });
    expect(readEvent({ type: "response.output_item.added", sequence_number: 3, item: "?" })).toEqual({ kind: "other", seq: 3 });
    expect(readEvent({ type: "constructor", sequence_number: 3, delta: "x" })).toEqual({ kind: "other", seq: 3 });
  });

  it("with a name that is no name, or a very long one, is bounded", () => {
    const item = { type: "function_call", name: "n".repeat(5000), namespace: 7 };
    expect(readEvent({ type: "response.output_item.added", sequence_number: 3, item })).toMatchObject({ kind: "opened", name: "n".repeat(200), call: "" });
    expect(readEvent({ type: "response.output_item.added", sequence_number: 3, item: { ...item, call_id: "c".repeat(65) } })).toMatchObject({ call: "" });
  });

  it("whose whole text differs from its pieces becomes the server's, and no other does", () => {
    const events = recorded("items");
    const done = events.findIndex(({ type }) => type === "response.function_call_arguments.done");
    const before = fold(events.slice(0, done));
    const wrong = { ...before, text: `${before.text.slice(0, -3)}?` };
    const { answer, corrected } = apply(wrong, parse(events[done] as Raw), null);
    expect(corrected).toBe(true);
    expect(fold(events.slice(done + 1), answer)).toEqual(fold(events));
    expect(apply(before, parse(events[done] as Raw), null).corrected).toBe(false);
  });
});

/** The events that a server would send for these items, in pieces of `size` characters. */
function events(items: { type: string; name?: string; text: string }[], size: number): Raw[] {
  const events = items.flatMap(({ type, name, text }) => {
    const part = { message: "output_text", reasoning: "reasoning_text", function_call: "function_call_arguments" }[type] ?? "";
    const characters = [...text];
    const pieces = Array.from({ length: Math.ceil(characters.length / size) }, (_, place) => characters.slice(place * size, (place + 1) * size).join(""));
    return [
      { type: "response.output_item.added", item: { type, name } },
      ...pieces.map((delta) => ({ type: `response.${part}.delta`, delta })),
      { type: `response.${part}.done`, text, arguments: text },
      { type: "response.output_item.done", item: { type, status: "completed" } },
    ];
  });
  return events.map((event, sequence_number) => ({ ...event, sequence_number }));
}

describe("what is kept", () => {
  it("of reasoning and calls together is bounded, and what is left out is counted; messages are whole", () => {
    const thoughts = "t".repeat(MAX_SIDE_CHARACTERS - 100);
    const items = [
      { type: "message", text: "m".repeat(300_000) },
      { type: "reasoning", text: thoughts },
      { type: "function_call", name: "f", text: `"${"😀".repeat(60)}${"a".repeat(80)}"` },
      { type: "message", text: "m".repeat(300_000) },
      { type: "function_call", name: "g", text: "{}" },
    ];
    const answers = [10, 4000].map((size) => fold(events(items, size)));
    for (const answer of answers) {
      const [before, first, second, third, fourth] = parts(answer);
      expect(before?.text).toHaveLength(300_000);
      expect(first).toMatchObject({ text: thoughts, left: 0 });
      // Not within a character.
      expect(second).toMatchObject({ text: `"${"😀".repeat(49)}`, left: 103, state: "whole" });
      expect(third?.text).toHaveLength(300_000);
      expect(fourth).toMatchObject({ text: "{", left: 1 });
    }
    expect({ ...answers[0], lastSeq: 0, deltas: 0 }).toEqual({ ...answers[1], lastSeq: 0, deltas: 0 });
  });

  it("of many items is bounded too", () => {
    const items = Array.from({ length: MAX_ITEMS + 7 }, (_, place) => ({ type: place % 2 === 0 ? "message" : "function_call", name: "f", text: "[1]" }));
    const answer = fold(events(items, 9));
    expect(answer.items).toHaveLength(MAX_ITEMS);
    expect(answer.more).toBe(7);
    expect(answer.text).toBe("[1]".repeat(MAX_ITEMS));
  });
});

describe("what an older version of this page kept", () => {
  const old = (answer: Answer): Answer => {
    const { items: _, more: __, ...rest } = answer;
    return JSON.parse(JSON.stringify(rest)) as Answer;
  };

  it("is one message when it ended", () => {
    const answer = readAnswer(old(fold(recorded("plain"))));
    expect(parts(answer)).toMatchObject([{ kind: "message", text: "One two three." }]);
    expect(messageText([answer])).toBe("One two three.");
  });

  it("is read again from the beginning when it still runs, because it may lack items", () => {
    expect(readAnswer(old(fold(recorded("items").slice(0, 9))))).toEqual(newAnswer("resp_1"));
  });

  it("has what was not told then as unknown", () => {
    const answer = fold(recorded("plain"));
    const { asked: _, segments: __, shortened: ___, cached: ____, continuable: _____, sources: ______, ...rest } = answer;
    expect(readAnswer(rest as Answer)).toEqual(answer);
    for (const sources of ["?", [null], [1]]) expect(readAnswer({ ...answer, sources } as unknown as Answer).sources).toEqual([]);
    for (const segments of ["?", [null], [{ item: 0 }], [{ item: 0.5, model: "m" }]]) expect(readAnswer({ ...answer, segments } as unknown as Answer).segments).toEqual([]);
  });

  it.each([[[{ at: 3 }]], [[{ at: 9, name: "", left: 0 }]], [[{ at: 2, name: "", left: 0 }, { at: 1, name: "", left: 0 }]], [[null]], ["?"]])("with damaged items %j is one message", (items) => {
    const damaged = { ...fold(recorded("plain")), text: "text", items } as unknown as Answer;
    expect(parts(readAnswer(damaged))).toMatchObject([{ kind: "message", text: "text" }]);
  });
});
