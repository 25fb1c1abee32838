import { describe, expect, it } from "vitest";
import { forgetUser, keepUser, keptUser } from "../../src/edge/keptUser";

/** A storage; where it is full, nothing can be written, and what is there stays. */
function storageOf(kept: Map<string, string>, full = false): Storage {
  const setItem = (key: string, value: string): void => {
    if (full) throw new DOMException("full", "QuotaExceededError");
    kept.set(key, value);
  };
  return { getItem: (key: string) => kept.get(key) ?? null, setItem, removeItem: (key: string) => void kept.delete(key) } as unknown as Storage;
}

describe("the user of this browser", () => {
  it("is kept until they sign out", () => {
    const storage = storageOf(new Map());
    expect(keptUser(storage)).toBeNull();
    keepUser(storage, "alice");
    expect(keptUser(storage)).toBe("alice");
    forgetUser(storage);
    expect(keptUser(storage)).toBeNull();
  });

  it("is not the one before where there is no room for the name of now", () => {
    const kept = new Map<string, string>();
    keepUser(storageOf(kept), "alice");
    keepUser(storageOf(kept, true), "bob, whose name is longer");
    expect(keptUser(storageOf(kept))).toBeNull();
  });

  it("is nobody where there is no storage", () => {
    keepUser(null, "alice");
    forgetUser(null);
    expect(keptUser(null)).toBeNull();
  });
});
