import { describe, expect, it } from "vitest";
import { forgetUser, storeUser, loadUser } from "../../src/edge/storedUser";

/** A storage. While it is full, writes fail and the former values stay. */
function storageOf(records: Map<string, string>, full = false): Storage {
  const setItem = (key: string, value: string): void => {
    if (full) throw new DOMException("full", "QuotaExceededError");
    records.set(key, value);
  };
  return { getItem: (key: string) => records.get(key) ?? null, setItem, removeItem: (key: string) => void records.delete(key) } as unknown as Storage;
}

describe("the user of this browser", () => {
  it("is kept until they sign out", () => {
    const storage = storageOf(new Map());
    expect(loadUser(storage)).toBeNull();
    storeUser(storage, "alice");
    expect(loadUser(storage)).toBe("alice");
    forgetUser(storage);
    expect(loadUser(storage)).toBeNull();
  });

  it("is not the one before where there is no room for the name of now", () => {
    const records = new Map<string, string>();
    storeUser(storageOf(records), "alice");
    storeUser(storageOf(records, true), "bob, whose name is longer");
    expect(loadUser(storageOf(records))).toBeNull();
  });

  it("is nobody where there is no storage", () => {
    storeUser(null, "alice");
    forgetUser(null);
    expect(loadUser(null)).toBeNull();
  });
});
