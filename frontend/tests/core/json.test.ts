import { describe, expect, it } from "vitest";
import { indentJson } from "../../src/core/json";

describe("arguments for reading", () => {
  it("have one member to a line", () => {
    expect(indentJson('{"city":"Zürich","days":[1,2],"none":{},"empty":[ ]}')).toBe(
      '{\n  "city": "Zürich",\n  "days": [\n    1,\n    2\n  ],\n  "none": {},\n  "empty": []\n}',
    );
  });

  it("keep every token as it was written", () => {
    const text = '{"n":12345678901234567890.10,"n":1e400,"2":-0,"1":"\\u0041\\"{,:[]}","s":" a  b "}';
    expect(indentJson(text)?.replace(/\n */g, "").replace(/": /g, '":')).toBe(text);
  });

  it.each(["1", '"text"', "null", "[]", "{}"])("that are one token stay so: %s", (text) => expect(indentJson(text)).toBe(text));

  it.each(["", "{", '{"city": "Zür', "ls -la", '{"a":1}{"b":2}', "NaN"])("that are no JSON are shown as they are: %s", (text) => expect(indentJson(text)).toBeNull());

  it("are bounded in length and depth", () => {
    expect(indentJson(`"${"x".repeat(30_000)}"`)).toBeNull();
    const deep = indentJson("[".repeat(9_000) + "]".repeat(9_000));
    expect(deep === null || deep.length < 700_000).toBe(true);
  });
});
