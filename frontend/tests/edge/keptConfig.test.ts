import { expect, it } from "vitest";
import { keepConfig, keptConfig } from "../../src/edge/keptConfig";

function memory(kept: Record<string, string> = {}): Storage {
  return { getItem: (key: string) => kept[key] ?? null, setItem: (key: string, value: string) => void (kept[key] = value) } as unknown as Storage;
}

it("gives back the settings that were there last", () => {
  const storage = memory();
  expect(keptConfig(storage)).toBeNull();
  const config = { pushUrls: ["https://push.example"], models: ["large", "small"], defaultModel: "small", takes: { large: { images: true, files: false, maxOutputTokens: 100 } }, version: "1", conversations: true, titles: false, shares: true, searches: true };
  keepConfig(storage, config);
  expect(keptConfig(storage)).toEqual(config);
});

it.each([["half", '{"models":'], ["of another kind", '"x"']])("does without what is %s", (_, raw) => {
  expect(keptConfig(memory({ "tailrace.config": raw }))?.models ?? []).toEqual([]);
});
