import { h } from "../view/dom";
import type { Pipeline, Progress } from "./answers";
import * as words from "./words";

interface Column {
  title: string;
  figure: (progress: Progress) => string;
}

const COLUMNS: Column[] = [
  { title: "Answered", figure: (p) => words.count(p.answered) },
  { title: "Skipped", figure: (p) => words.count(p.skipped) },
  { title: "Dead", figure: (p) => words.count(p.dead) },
  { title: "Alerts", figure: (p) => words.count(p.alerted) },
  { title: "Lag", figure: (p) => words.count(p.lag) },
  { title: "Rows/s", figure: (p) => words.rate(p.rowsPerS) },
  { title: "Time left", figure: (p) => (p.lag === 0 ? "–" : words.duration(p.etaS)) },
  { title: "Tokens in", figure: (p) => words.short(p.inputTokens) },
  { title: "Tokens out", figure: (p) => words.short(p.outputTokens) },
  { title: "Cost", figure: (p) => (p.cost === null ? "–" : words.short(p.cost)) },
];

/** A row for each pipeline. On a narrow screen rows are drawn as cards: `display` would remove the
    roles, so they are set. */
export class PipelineTable {
  private readonly body = h("tbody", { role: "rowgroup" });
  readonly element = h(
    "table",
    { class: "pipelines", role: "table", "aria-labelledby": "pipelines-title" },
    h(
      "thead",
      { role: "rowgroup" },
      h("tr", { role: "row" }, ...["Pipeline", "State", ...COLUMNS.map((column) => column.title)].map((title) => h("th", { role: "columnheader", scope: "col" }, title))),
    ),
    this.body,
  );

  show(pipelines: readonly Pipeline[]): void {
    this.body.replaceChildren(...pipelines.map(row));
  }
}

function row(pipeline: Pipeline): HTMLElement {
  const { progress } = pipeline;
  const name = h(
    "th",
    { role: "rowheader", scope: "row" },
    h("span", { class: "name" }, pipeline.name),
    h("span", { class: "detail" }, `${pipeline.input} → ${pipeline.outputs[0] ?? ""}`),
    h("span", { class: "detail" }, `revision ${pipeline.revision}`),
  );
  const state = h("td", { role: "cell", class: "state" }, h("span", { class: "words" }, words.state(pipeline)));
  if (progress !== null) {
    const bar = h("progress", { max: "1", value: String(progress.read + progress.lag === 0 ? 0 : progress.share), "aria-label": `Rows of ${pipeline.name} that are done` });
    state.append(bar, h("span", { class: "detail" }, words.progress(progress)));
  }
  const figures = COLUMNS.map((column) => h("td", { role: "cell", class: "figure", "data-title": column.title }, progress === null ? "–" : column.figure(progress)));
  return h("tr", { role: "row", "data-name": pipeline.name, "data-state": pipeline.state }, name, state, ...figures);
}
