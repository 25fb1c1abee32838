import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Lazy } from "../../src/view/lazy";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** What is brought comes when `come` is called. */
function coming(): { brought: Lazy<string>; come(value: string): Promise<void>; loads: () => number } {
  let come: (value: string) => void = () => undefined;
  let loads = 0;
  const brought = new Lazy<string>(() => {
    loads += 1;
    return new Promise((done) => (come = done));
  });
  return {
    brought,
    loads: () => loads,
    come: async (value) => {
      come(value);
      await vi.advanceTimersByTimeAsync(0);
    },
  };
}

/** Whether it has resolved by now. */
function resolved(promise: Promise<void>): () => boolean {
  let done = false;
  void promise.then(() => (done = true));
  return () => done;
}

describe("waiting for it for a moment", () => {
  it("ends when it has come", async () => {
    const { brought, come, loads } = coming();
    const done = resolved(brought.soon(150));
    await vi.advanceTimersByTimeAsync(100);
    expect(done()).toBe(false);
    await come("here");
    expect([done(), brought.value, loads()]).toEqual([true, "here", 1]);
  });

  it("ends when the time is over, and it may still come", async () => {
    const { brought, come } = coming();
    const done = resolved(brought.soon(150));
    await vi.advanceTimersByTimeAsync(150);
    expect([done(), brought.isComing]).toEqual([true, true]);
    await come("here");
    expect(brought.value).toBe("here");
  });

  it("is not needed where it is there", async () => {
    const { brought, come } = coming();
    brought.bring();
    await come("here");
    const done = resolved(brought.soon(150));
    await vi.advanceTimersByTimeAsync(0);
    expect(done()).toBe(true);
  });
});
