import { describe, expect, it } from "vitest";
import { drawOrder } from "../../src/core/drawOrder";

describe("the order in which turns of a long chat are drawn", () => {
  it("is the newest first", () => {
    expect(drawOrder([0, 1, 2, 5], () => false)).toEqual([5, 2, 1, 0]);
  });

  it("begins with what is in sight, from its top", () => {
    expect(drawOrder([0, 1, 2, 3, 4, 5], (place) => place === 1 || place === 2)).toEqual([1, 2, 5, 4, 3, 0]);
  });
});
