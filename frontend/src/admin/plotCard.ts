import { h, setText } from "../view/dom";
import { draw, mark } from "./chart";
import { isEmpty, type Plot } from "./series";
import * as words from "./words";

/** One plot with its title, unit, legend and table. An open table is updated with the figures. */
export class PlotCard {
  private readonly title = h("h3");
  private readonly unit = h("span", { class: "unit" });
  private readonly drawing = h("div", { class: "drawing" });
  private readonly legend = h("ul", { class: "legend" });
  private readonly readout = h("p", { class: "picked", "aria-hidden": "true" });
  private readonly nothing = h("p", { class: "nothing" }, "No data in this range.");
  private readonly table = h("table", {});
  private readonly scroll = h("div", { class: "scroll", tabindex: "0", role: "region" }, this.table);
  private readonly details = h("details", { ontoggle: () => this.fill() }, h("summary", {}, "Table"), this.scroll);
  readonly element: HTMLElement;
  private plot: Plot | null = null;
  private at: number[] = [];
  private step = 0;

  constructor(id: string) {
    this.element = h("section", { class: "card", id: `plot-${id}`, "aria-labelledby": `plot-${id}-title` }, h("header", {}, this.title, this.unit), this.drawing, this.nothing, this.legend, this.readout, this.details);
    this.title.id = `plot-${id}-title`;
    new ResizeObserver(() => this.draw()).observe(this.drawing);
  }

  show(plot: Plot, at: number[], step: number): void {
    this.plot = plot;
    this.at = at;
    this.step = step;
    setText(this.title, plot.title);
    setText(this.unit, plot.kind === "bars" ? `${plot.unit} per ${words.duration(step / 1000)}` : plot.unit);
    this.scroll.setAttribute("aria-label", `Table: ${plot.title}`);
    const none = isEmpty(plot);
    this.nothing.hidden = !none;
    this.drawing.hidden = none;
    this.details.hidden = none;
    this.legend.hidden = none || plot.series.length < 2;
    this.legend.replaceChildren(...plot.series.map((series) => h("li", { class: mark(series) }, h("span", { class: "swatch" }), series.name)));
    this.readout.hidden = none;
    this.draw();
    this.fill();
  }

  private draw(): void {
    const { plot } = this;
    if (plot === null || this.drawing.hidden || this.drawing.clientWidth === 0) return;
    const label = `${plot.title}, in ${plot.unit}, ${words.moment(this.at[0] ?? 0)} to ${words.moment((this.at.at(-1) ?? 0) + this.step)}. The table below has the figures.`;
    this.drawing.replaceChildren(draw(plot, this.at, this.step, this.drawing.clientWidth, label, (index) => this.pick(index)));
    this.pick(null);
  }

  private pick(index: number | null): void {
    if (index === null || this.plot === null) {
      setText(this.readout, "\u00a0");
      return;
    }
    const figures = this.plot.series.map((series) => [series.name, series.values[index] ?? null] as const).filter(([, value]) => value !== null && value !== 0);
    const entries = figures.map(([name, value]) => (this.plot?.series.length === 1 ? words.short(value ?? 0) : `${name} ${words.short(value ?? 0)}`));
    setText(this.readout, `${words.moment(this.at[index] ?? 0)}: ${entries.length === 0 ? "nothing" : entries.join(" · ")}`);
  }

  // Newest first; steps without a figure are left out. Filled only while the table is open.
  private fill(): void {
    const { plot } = this;
    if (plot === null || !this.details.open) return;
    const head = h("tr", {}, ...["Time", ...plot.series.map((series) => series.name)].map((name) => h("th", { scope: "col" }, name)));
    const rows: HTMLElement[] = [];
    for (let index = this.at.length - 1; index >= 0; index -= 1) {
      const values = plot.series.map((series) => series.values[index] ?? null);
      if (values.every((value) => value === null || value === 0)) continue;
      rows.push(h("tr", { "data-time": String(this.at[index]) }, h("th", { scope: "row" }, words.moment(this.at[index] ?? 0)), ...values.map((value) => h("td", {}, value === null ? "–" : words.exact(value)))));
    }
    this.table.replaceChildren(h("caption", { class: "sr-only" }, `${plot.title}, in ${plot.unit}`), h("thead", {}, head), h("tbody", {}, ...rows));
  }
}
