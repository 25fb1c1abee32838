import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Lazy } from "../../src/view/lazy";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A module that is loaded when `finish` is called. */
function lazyModule(): { lazy: Lazy<string>; finish(value: string): Promise<void>; loads: () => number } {
  let finish: (value: string) => void = () => undefined;
  let loads = 0;
  const lazy = new Lazy<string>(() => {
    loads += 1;
    return new Promise((done) => (finish = done));
  });
  return {
    lazy,
    loads: () => loads,
    finish: async (value) => {
      finish(value);
      await vi.advanceTimersByTimeAsync(0);
    },
  };
}

/** Whether the promise has resolved. */
function resolved(promise: Promise<void>): () => boolean {
  let done = false;
  void promise.then(() => (done = true));
  return () => done;
}

describe("waiting for a module", () => {
  it("ends when the module is loaded", async () => {
    const { lazy, finish, loads } = lazyModule();
    const done = resolved(lazy.wait(150));
    await vi.advanceTimersByTimeAsync(100);
    expect(done()).toBe(false);
    await finish("here");
    expect([done(), lazy.value, loads()]).toEqual([true, "here", 1]);
  });

  it("ends when the time is over, and the module may still be loaded", async () => {
    const { lazy, finish } = lazyModule();
    const done = resolved(lazy.wait(150));
    await vi.advanceTimersByTimeAsync(150);
    expect([done(), lazy.isLoading]).toEqual([true, true]);
    await finish("here");
    expect(lazy.value).toBe("here");
  });

  it("is not needed when the module is there", async () => {
    const { lazy, finish } = lazyModule();
    lazy.load();
    await finish("here");
    const done = resolved(lazy.wait(150));
    await vi.advanceTimersByTimeAsync(0);
    expect(done()).toBe(true);
  });
});
