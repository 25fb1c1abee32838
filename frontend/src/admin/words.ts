/* Figures and states as texts. */

import type { Pipeline, Progress } from "./answers";

const STATES: Record<string, string> = {
  unread: "Not measured yet",
  running: "Running",
  done: "All rows are done",
  standing: "Stalled: rows are waiting, and none was completed recently. Either no runner is running, or the runner waits for the gateway",
  measuring: "Rows are waiting; the rate is being measured",
  missing: "The input topic does not exist",
  unknown: "Kafka does not answer",
};

export function state(pipeline: Pipeline): string {
  if (pipeline.state === "done" && pipeline.progress?.read === 0) return "No rows yet";
  const words = STATES[pipeline.state] ?? pipeline.state;
  const stale = pipeline.state === "missing" || pipeline.state === "unknown";
  return stale && pipeline.checkedAt !== null ? `${words}. The figures are from ${clock(pipeline.checkedAt * 1000)}` : words;
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const FINE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** 12345 → "12,345". */
export function count(value: number): string {
  return WHOLE.format(value);
}

/** 12345 → "12.3K"; 0.0123 → "0.0123". */
export function short(value: number): string {
  return Math.abs(value) >= 10_000 ? COMPACT.format(value) : FINE.format(value);
}

/** For a table: up to six digits, without rounding errors of doubles. */
export function exact(value: number): string {
  return Number.isInteger(value) ? WHOLE.format(value) : String(Number(value.toPrecision(6)));
}

export function rate(value: number | null): string {
  return value === null ? "–" : value.toFixed(1);
}

/** Two units at most: 3725 → "1 h 2 min". */
export function duration(seconds: number | null): string {
  if (seconds === null) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 === 0 ? `${s / 60} min` : `${Math.floor(s / 60)} min ${s % 60} s`;
  const [hours, minutes] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60)];
  if (hours < 48) return minutes === 0 ? `${hours} h` : `${hours} h ${minutes} min`;
  return `${WHOLE.format(Math.floor(hours / 24))} d ${hours % 24} h`;
}

/** The rows that are done. Never 100 % while a row waits. */
export function progress({ read, lag, share }: Pick<Progress, "read" | "lag" | "share">): string {
  if (read + lag === 0) return "0 rows";
  const percent = Math.floor(Math.min(1, share) * 1000) / 10;
  return `${count(read)} of ${count(read + lag)} rows, ${lag > 0 ? Math.min(99.9, percent) : percent} %`;
}

export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** The time at which a step begins. */
export function moment(ms: number): string {
  const at = new Date(ms);
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}
