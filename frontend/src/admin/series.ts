/* Makes plots of the results of analytics: their series, times and units. */

import type { Analytics, Cell, Row } from "./answers";

export interface Series {
  name: string;
  /** One for each time; null: not known. */
  values: (number | null)[];
  /** The index of its colour. */
  colour: number;
  /** Whether the line is dashed. Two lines of one colour differ by it. */
  dashed: boolean;
}

export interface Plot {
  id: string;
  title: string;
  unit: string;
  /** Bars are stacked. */
  kind: "lines" | "bars";
  /** Whether all values are whole numbers. */
  whole: boolean;
  series: Series[];
}

/** The start of each step, in ms. */
export function times(analytics: Analytics): number[] {
  return Array.from({ length: Math.round((analytics.to - analytics.from) / analytics.step) }, (_, at) => analytics.from + at * analytics.step);
}

export type By = "model" | "tenant";

export function plots(analytics: Analytics, by: By): Plot[] {
  const at = new Map(times(analytics).map((time, index) => [time, index]));
  const rows = (name: string): Row[] => analytics.results[name] ?? [];
  const one = (name: string, table: string, column: string, colour = 0): Series => {
    const values: (number | null)[] = Array.from({ length: at.size }, () => 0);
    for (const row of rows(table)) setValue(values, at, row, row[column], 1);
    return { name, values, colour, dashed: colour > 0 };
  };
  // A series for each name; the last series has the other names.
  const many = (table: string, column: string, nothing: number | null, others: string, scale = 1): Series[] => {
    const valuesByName = new Map<string, (number | null)[]>();
    for (const row of rows(table)) {
      const name = row["series"] === null ? others : row["series"] === "" ? `no ${by}` : String(row["series"]);
      const values = valuesByName.get(name) ?? Array.from({ length: at.size }, () => nothing);
      valuesByName.set(name, values);
      setValue(values, at, row, row[column], scale);
    }
    const entries = [...valuesByName].sort(([a], [b]) => Number(a === others) - Number(b === others) || (a < b ? -1 : 1));
    return entries.map(([name, values], colour) => ({ name, values, colour, dashed: false }));
  };
  const usage = by === "model" ? "usage_by_model" : "usage_by_tenant";
  const others = by === "model" ? "other models" : "other tenants";
  const percentiles = (kind: string): Series[] => {
    const [half, most] = [many("latency", `${kind}_p50_ms`, null, ""), many("latency", `${kind}_p95_ms`, null, "")];
    return half.flatMap((series, nth) => [
      { ...series, name: `${series.name}, 50th percentile` },
      { ...series, name: `${series.name}, 95th`, values: most[nth]?.values ?? [], dashed: true },
    ]);
  };
  return [
    { id: "rate", title: "Responses per second", unit: "responses/s", kind: "lines", whole: false, series: [one("mean of the step", "requests", "per_second"), one("busiest second", "requests", "peak", 1)] },
    { id: "failed", title: "Failed responses", unit: "responses", kind: "bars", whole: true, series: [one("failed", "requests", "failed")] },
    { id: "input", title: `Input tokens by ${by}`, unit: "tokens", kind: "bars", whole: true, series: many(usage, "input_tokens", 0, others) },
    { id: "output", title: `Output tokens by ${by}`, unit: "tokens", kind: "bars", whole: true, series: many(usage, "output_tokens", 0, others) },
    { id: "cost", title: `Cost by ${by}`, unit: "currency of the prices", kind: "bars", whole: false, series: many(usage, "cost_nano", 0, others, 1e-9) },
    { id: "first", title: "Time to first token", unit: "ms", kind: "lines", whole: false, series: percentiles("first_token") },
    { id: "inter", title: "Time between tokens", unit: "ms", kind: "lines", whole: false, series: percentiles("inter_token") },
    { id: "sessions", title: "New sessions", unit: "sessions", kind: "bars", whole: true, series: [one("sessions", "sessions", "sessions")] },
    { id: "answers", title: "Pipeline answers by label", unit: "answers", kind: "bars", whole: true, series: many("answers", "answers", 0, "other labels") },
  ];
}

function setValue(values: (number | null)[], at: Map<number, number>, row: Row, value: Cell | undefined, scale: number): void {
  const index = at.get(Number(row["time"]));
  if (index !== undefined && typeof value === "number") values[index] = value * scale;
}

/** Whether there is anything to draw. */
export function isEmpty(plot: Plot): boolean {
  return plot.series.every((series) => series.values.every((value) => value === null || value === 0));
}
