import { describe, expect, it } from "vitest";
import { BadAnswer, readAnalytics, readPipelines } from "../../src/admin/answers";
import { isEmpty, plots, times, type Plot } from "../../src/admin/series";

const T = 1_795_630_800_000;
const STEP = 60_000;

function answer(results: Record<string, { columns: string[]; rows: unknown[][] }>): unknown {
  return { object: "analytics", from: T, to: T + 3 * STEP, step: STEP, results };
}

const USAGE = { columns: ["time", "series", "input_tokens", "cost_nano"], rows: [[T, "z", 10, 5e8], [T, null, 1, 0], [T + STEP, "a", 7, 1e9], [T + STEP, "", 2, 0], [T + 9 * STEP, "a", 99, 0]] };

function plot(id: string, results: Parameters<typeof answer>[0], by: "model" | "tenant" = "model"): Plot {
  const plot = plots(readAnalytics(answer(results)), by).find((each) => each.id === id);
  if (plot === undefined) throw new Error(`no plot ${id}`);
  return plot;
}

describe("plots", () => {
  it("have a value for each step, and the others last", () => {
    const { series } = plot("input", { usage_by_model: USAGE });
    expect(series.map(({ name, values }) => [name, values])).toEqual([
      ["a", [0, 7, 0]],
      ["no model", [0, 2, 0]],
      ["z", [10, 0, 0]],
      ["other models", [1, 0, 0]],
    ]);
  });

  it("are of the models or of the tenants", () => {
    expect(plot("input", { usage_by_model: USAGE }, "tenant").series).toEqual([]);
    const { title, series } = plot("input", { usage_by_tenant: USAGE }, "tenant");
    expect([title, series.at(-1)?.name]).toEqual(["Input tokens by tenant", "other tenants"]);
  });

  it("say cost in the currency and not in billionths", () => {
    expect(plot("cost", { usage_by_model: USAGE }).series[2]?.values).toEqual([0.5, 0, 0]);
  });

  it("leave a gap where a percentile is not known, and a zero where nothing was asked", () => {
    const latency = { columns: ["time", "series", "first_token_p50_ms", "first_token_p95_ms"], rows: [[T, "m", 5, 9], [T + 2 * STEP, "m", 6, null]] };
    const { series } = plot("first", { latency });
    expect(series.map(({ name, values, colour, dashed }) => [name, values, colour, dashed])).toEqual([
      ["m, 50th percentile", [5, null, 6], 0, false],
      ["m, 95th", [9, null, null], 0, true],
    ]);
    const requests = { columns: ["time", "per_second", "peak"], rows: [[T + STEP, 0.5, 3]] };
    expect(plot("rate", { requests }).series.map((each) => each.values)).toEqual([[0, 0.5, 0], [0, 3, 0]]);
  });

  it("know when there is nothing to draw", () => {
    expect(plots(readAnalytics(answer({})), "model").every(isEmpty)).toBe(true);
    expect(isEmpty(plot("input", { usage_by_model: USAGE }))).toBe(false);
  });
});

describe("answers", () => {
  it("are refused where a figure would be wrong", () => {
    const bad = [
      null,
      {},
      { from: T, to: T, step: STEP, results: {} },
      { from: T, to: T + 1e12, step: 1, results: {} },
      answer({ requests: { columns: ["time"], rows: [[T, 1]] } }),
      answer({ requests: { columns: ["time"], rows: [[{}]] } }),
    ];
    for (const each of bad) expect(() => readAnalytics(each)).toThrow(BadAnswer);
    for (const each of [null, { data: {} }, { data: [{}] }, { data: [{ name: "n", revision: "r", input: "i", outputs: [], state: "done", looked_at: 1, progress: { read: "5" } }] }]) {
      expect(() => readPipelines(each)).toThrow(BadAnswer);
    }
  });

  it("name each step once", () => {
    expect(times(readAnalytics(answer({})))).toEqual([T, T + STEP, T + 2 * STEP]);
  });
});
