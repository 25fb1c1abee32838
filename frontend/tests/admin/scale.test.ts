import { describe, expect, it } from "vitest";
import { stacked, ticks, timeTicks } from "../../src/admin/scale";

const MINUTE = 60_000;
const MIDNIGHT = Date.UTC(2026, 10, 25);

describe("ticks", () => {
  it("are round, begin at 0, and reach the largest value", () => {
    expect(ticks(7)).toEqual([0, 2, 4, 6, 8]);
    expect(ticks(100)).toEqual([0, 25, 50, 75, 100]);
    expect(ticks(0.3)).toEqual([0, 0.1, 0.2, 0.3]);
    expect(ticks(1234567)).toEqual([0, 500000, 1000000, 1500000]);
    expect(ticks(0)).toEqual([0, 1]);
    for (let value = 1e-6; value < 1e9; value *= 3.7) {
      const marks = ticks(value);
      expect(marks.at(-1)).toBeGreaterThanOrEqual(value * 0.999999);
      expect(marks.length).toBeLessThanOrEqual(6);
    }
  });

  it("of things that are counted are whole", () => {
    expect(ticks(1, true)).toEqual([0, 1]);
    expect(ticks(9, true)).toEqual([0, 5, 10]);
    for (let value = 1; value < 500; value += 1) expect(ticks(value, true).every(Number.isInteger)).toBe(true);
  });
});

describe("time ticks", () => {
  it("are at round local times within the range, and not too many", () => {
    const marks = timeTicks(MIDNIGHT + 7 * MINUTE, MIDNIGHT + 67 * MINUTE, 5, 0);
    expect(marks.map((time) => (time - MIDNIGHT) / MINUTE)).toEqual([15, 30, 45, 60]);
    // A time zone with half an hour: the ticks are round in local time.
    const india = timeTicks(MIDNIGHT, MIDNIGHT + 1440 * MINUTE, 4, -330);
    expect(india.map((time) => (time - MIDNIGHT) / MINUTE)).toEqual([30, 390, 750, 1110].map((each) => each));
    expect(timeTicks(MIDNIGHT, MIDNIGHT + 43_200 * MINUTE, 6, 0).length).toBeLessThanOrEqual(6);
  });
});

describe("bars", () => {
  it("stand on each other", () => {
    expect(stacked([[1, null], [2, 3]])).toEqual([
      [{ from: 0, to: 1 }, { from: 0, to: 0 }],
      [{ from: 1, to: 3 }, { from: 0, to: 3 }],
    ]);
  });
});
