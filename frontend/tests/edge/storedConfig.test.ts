import { expect, it } from "vitest";
import { storeConfig, loadConfig } from "../../src/edge/storedConfig";

function memory(records: Record<string, string> = {}): Storage {
  return { getItem: (key: string) => records[key] ?? null, setItem: (key: string, value: string) => void (records[key] = value) } as unknown as Storage;
}

it("gives back the settings that were there last", () => {
  const storage = memory();
  expect(loadConfig(storage)).toBeNull();
  const config = { pushUrls: ["https://push.example"], models: ["large", "small"], defaultModel: "small", takes: { large: { images: true, files: false, maxOutputTokens: 100 } }, version: "1", conversations: true, titles: false, shares: true, searches: true };
  storeConfig(storage, config);
  expect(loadConfig(storage)).toEqual(config);
});

it.each([["half", '{"models":'], ["of another kind", '"x"']])("does without what is %s", (_, raw) => {
  expect(loadConfig(memory({ "tailrace.config": raw }))?.models ?? []).toEqual([]);
});
