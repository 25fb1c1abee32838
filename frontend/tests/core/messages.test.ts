import { describe, expect, it } from "vitest";
import { fileRefusalWords, settingsWords, sizeWords, uploadWords, invalidFieldWords } from "../../src/core/messages";
import { DEFAULT_SETTINGS } from "../../src/core/settings";

describe("settings in words", () => {
  it("are only those that are set", () => {
    expect(settingsWords({ ...DEFAULT_SETTINGS, model: "m" })).toBe("");
    expect(settingsWords({ model: null, instructions: "x", temperature: 0.75, length: 1 })).toBe("instructions, temperature 0.75, at most 1 token");
    expect([0, 0.7, 2, 0.55].map((temperature) => settingsWords({ ...DEFAULT_SETTINGS, temperature }))).toEqual(["temperature 0.0", "temperature 0.7", "temperature 2.0", "temperature 0.55"]);
  });

  it("that are wrong name the model's bound where it is known", () => {
    expect(invalidFieldWords("length", 1000)).toContain("from 1 to 1000");
    expect(invalidFieldWords("length", null)).toBe("Enter a whole number, 1 or more.");
    expect(invalidFieldWords("temperature", null)).toBe("Enter a number from 0 to 2.");
  });
});

describe("files in words", () => {
  it("have sizes", () => {
    expect([0, 1, 1499, 262_144, 999_999, 6_291_456].map(sizeWords)).toEqual(["1 kB", "1 kB", "1 kB", "262 kB", "1000 kB", "6.3 MB"]);
  });

  it("that are refused are named, with the bound", () => {
    expect(fileRefusalWords("tooLarge", "a.txt", "file", true)).toBe("a.txt is too large. The limit is 262 kB.");
    expect(fileRefusalWords("tooLarge", "a.png", "image", true)).toContain("50.0 MB");
    expect(fileRefusalWords("notText", "a.pdf", "file", false)).not.toContain("image");
  });

  it("that were not uploaded: why, and when again", () => {
    const fault = { code: "x", message: "As the server says." };
    expect(uploadWords(0, fault, null)).toBe("The server cannot be reached.");
    expect(uploadWords(401, fault, null)).toContain("uploaded when you sign in");
    expect(uploadWords(403, { ...fault, code: "session_token_missing" }, null)).toContain("uploaded when you sign in");
    expect(uploadWords(429, { ...fault, code: "too_many_files" }, 5)).toContain("tomorrow");
    expect(uploadWords(429, fault, 5000)).toContain("in 5 s");
    expect(uploadWords(400, fault, null)).toBe("As the server says.");
  });
});
