/* Parses the replies of the view service strictly: an invalid value is an error, not a wrong
   figure. */

/** A pipeline's figures; null: not measured. */
export interface Progress {
  read: number;
  skipped: number;
  answered: number;
  alerted: number;
  dead: number;
  found: number;
  requests: number;
  inputTokens: number;
  outputTokens: number;
  lag: number;
  rowsPerS: number | null;
  etaS: number | null;
  /** The share of the rows that are done, 0 to 1. */
  share: number;
  cost: number | null;
}

export interface Pipeline {
  name: string;
  revision: string;
  model: string | null;
  input: string;
  outputs: string[];
  state: string;
  /** Seconds since the epoch; null before the first check. */
  checkedAt: number | null;
  progress: Progress | null;
}

export type Cell = number | string | null;
export type Row = Record<string, Cell>;

export interface Analytics {
  /** ms since the epoch; `to` is the end of the last step. */
  from: number;
  to: number;
  step: number;
  results: Record<string, Row[]>;
}

export class BadAnswer extends Error {}

export function readPipelines(body: unknown): Pipeline[] {
  return list(object(body)["data"]).map((each) => {
    const fields = object(each);
    return {
      name: text(fields["name"]),
      revision: text(fields["revision"]),
      model: fields["model"] == null ? null : text(fields["model"]),
      input: text(fields["input"]),
      outputs: list(fields["outputs"]).map(text),
      state: text(fields["state"]),
      checkedAt: maybe(fields["looked_at"]),
      progress: fields["progress"] == null ? null : readProgress(object(fields["progress"])),
    };
  });
}

function readProgress(fields: Record<string, unknown>): Progress {
  return {
    read: number(fields["read"]),
    skipped: number(fields["skipped"]),
    answered: number(fields["answered"]),
    alerted: number(fields["alerted"]),
    dead: number(fields["dead"]),
    found: number(fields["found"]),
    requests: number(fields["requests"]),
    inputTokens: number(fields["input_tokens"]),
    outputTokens: number(fields["output_tokens"]),
    lag: number(fields["lag"]),
    rowsPerS: maybe(fields["rows_per_s"]),
    etaS: maybe(fields["eta_s"]),
    share: number(fields["share"]),
    cost: maybe(fields["cost"]),
  };
}

export function readAnalytics(body: unknown): Analytics {
  const fields = object(body);
  const results: Record<string, Row[]> = {};
  for (const [name, table] of Object.entries(object(fields["results"]))) {
    const columns = list(object(table)["columns"]).map(text);
    results[name] = list(object(table)["rows"]).map((row) => {
      const cells = list(row);
      if (cells.length !== columns.length) throw new BadAnswer(`a row of ${name} is too short or too long`);
      return Object.fromEntries(columns.map((column, at) => [column, cell(cells[at])]));
    });
  }
  const [from, to, step] = [number(fields["from"]), number(fields["to"]), number(fields["step"])];
  if (!(step > 0 && to > from && (to - from) / step < 1000)) throw new BadAnswer("the range is invalid");
  return { from, to, step, results };
}

function object(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null) throw new BadAnswer("an object is missing");
  return value as Record<string, unknown>;
}

function list(value: unknown): unknown[] {
  if (!Array.isArray(value)) throw new BadAnswer("a list is missing");
  return value;
}

function text(value: unknown): string {
  if (typeof value !== "string") throw new BadAnswer("a text is missing");
  return value;
}

function number(value: unknown): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new BadAnswer("a number is missing");
  return value;
}

function maybe(value: unknown): number | null {
  return value == null ? null : number(value);
}

function cell(value: unknown): Cell {
  return typeof value === "string" || value === null ? value : number(value);
}
