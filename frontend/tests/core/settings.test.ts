import { describe, expect, it } from "vitest";
import * as settings from "../../src/core/settings";
import { DEFAULT_SETTINGS, type Settings } from "../../src/core/settings";

const FULL: Settings = { model: "org/m", instructions: "Be brief.\nSay so.", temperature: 0.7, length: 300 };
const LONG = "x".repeat(501) + "😀".repeat(1000) + "y".repeat(1595); // 4,096 UTF-16 units

describe("settings that were typed", () => {
  const read = (changes: Partial<settings.SettingsInput>, longest: number | null = 1000): unknown => settings.readInput("m", { instructions: "", temperature: null, length: null, ...changes }, longest);

  it("are as they were meant", () => {
    expect(read({})).toEqual({ ...DEFAULT_SETTINGS, model: "m" });
    expect(read({ instructions: " Be brief. ", temperature: "0,5", length: " 20 " })).toEqual({ model: "m", instructions: "Be brief.", temperature: 0.5, length: 20 });
    expect(read({ temperature: "2", length: "1000" })).toMatchObject({ temperature: 2, length: 1000 });
    expect(read({ length: "5000" }, null)).toMatchObject({ length: 5000 });
  });

  it.each([
    ["temperature", { temperature: "" }],
    ["temperature", { temperature: "warm" }],
    ["temperature", { temperature: "2.1" }],
    ["temperature", { temperature: "-1" }],
    ["length", { length: "" }],
    ["length", { length: "0" }],
    ["length", { length: "1.5" }],
    ["length", { length: "1001" }],
    ["length", { length: "Infinity" }],
    ["instructions", { instructions: "x".repeat(4097) }],
  ] as const)("that cannot be sent are named: %s of %j", (field, changes) => {
    expect(read(changes)).toEqual([field]);
  });

  it("are all named that are wrong", () => {
    expect(read({ temperature: "x", length: "x" })).toEqual(["temperature", "length"]);
  });
});

describe("settings as metadata", () => {
  it.each([DEFAULT_SETTINGS, FULL, { ...FULL, temperature: 0 }, { ...DEFAULT_SETTINGS, instructions: LONG }])("come back as they were", (original) => {
    const metadata = settings.toMetadata(original);
    expect(settings.fromMetadata(metadata)).toEqual(original);
    expect(settings.fromMetadata(JSON.parse(JSON.stringify(metadata)))).toEqual(original);
  });

  it("have the keys that were agreed, and nothing of what is usual", () => {
    expect(settings.toMetadata(DEFAULT_SETTINGS)).toEqual({});
    expect(settings.toMetadata(FULL)).toEqual({ "page.model": "org/m", "page.temperature": "0.7", "page.length": "300", "page.instructions.0": FULL.instructions });
  });

  it("keep the server's bounds, and end no piece within a character", () => {
    const metadata = settings.toMetadata({ ...FULL, instructions: LONG });
    expect(Object.keys(metadata).length).toBeLessThanOrEqual(11);
    for (const value of Object.values(metadata)) {
      expect(Array.from(value).length).toBeLessThanOrEqual(512);
      expect(new TextDecoder().decode(new TextEncoder().encode(value))).toBe(value);
    }
    const most = settings.toMetadata({ ...FULL, instructions: "z".repeat(5000) });
    expect(Object.keys(most)).toContain("page.instructions.7");
    expect(Object.keys(most)).not.toContain("page.instructions.8");
  });

  it.each([null, undefined, 5, "x", [], {}, { "page.temperature": "warm", "page.length": "0", "page.model": 7, "page.instructions.1": "behind nothing" }, { "page.temperature": "3", "page.length": "" }])(
    "of other clients are usual: %j",
    (metadata) => expect(settings.fromMetadata(metadata)).toEqual(DEFAULT_SETTINGS),
  );

  it("are taken as far as they can be read", () => {
    expect(settings.fromMetadata({ "page.model": "m", "page.temperature": "x", "page.instructions.0": "a", "page.instructions.1": null, other: "y" })).toEqual({ ...DEFAULT_SETTINGS, model: "m", instructions: "a" });
  });
});

describe("settings that were stored", () => {
  it.each([null, undefined, "x", { temperature: "1", length: 1.5, model: 5, instructions: [] }, { temperature: 3, length: -1 }])("by something else are usual: %j", (record) => {
    expect(settings.readStampedSettings(record)).toEqual({ ...DEFAULT_SETTINGS, at: 0 });
  });

  it("are read back", () => {
    expect(settings.readStampedSettings(JSON.parse(JSON.stringify({ ...FULL, at: 7 })))).toEqual({ ...FULL, at: 7 });
  });
});
