/* Draws a plot as SVG: axes, and lines or bars. A table below it has the same figures. */

import type { Plot, Series } from "./series";
import { stacked, ticks, timeTicks } from "./scale";
import * as words from "./words";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 200;
const PAD = { top: 10, right: 10, bottom: 24, left: 48 };

function s(tag: string, attributes: Record<string, string | number>, ...children: (Node | string)[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** `label`: the text for assistive technology; `onPick`: called with the index of the time at the
    pointer; null: it has left. */
export function draw(plot: Plot, at: readonly number[], step: number, width: number, label: string, onPick: (index: number | null) => void): SVGElement {
  const [from, to] = [at[0] ?? 0, (at.at(-1) ?? 0) + step];
  const values = plot.series.map((series) => series.values);
  const stacks = plot.kind === "bars" ? stacked(values) : [];
  const most = plot.kind === "bars" ? Math.max(0, ...(stacks.at(-1) ?? []).map((bar) => bar.to)) : Math.max(0, ...values.flat().map((value) => value ?? 0));
  const marks = ticks(most, plot.whole);
  const top = marks.at(-1) ?? 1;
  const x = (time: number): number => PAD.left + ((time - from) / (to - from)) * (width - PAD.left - PAD.right);
  const y = (value: number): number => HEIGHT - PAD.bottom - (value / top) * (HEIGHT - PAD.top - PAD.bottom);

  const svg = s("svg", { class: "chart", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const mark of marks) {
    svg.append(s("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: y(mark), y2: y(mark) }));
    svg.append(s("text", { class: "tick", x: PAD.left - 7, y: y(mark) + 4, "text-anchor": "end" }, words.short(mark)));
  }
  const long = to - from > 36 * 3_600_000;
  for (const time of timeTicks(from, to, Math.max(2, Math.floor(width / (long ? 90 : 66))))) {
    const near = x(time) < PAD.left + 16 ? "start" : x(time) > width - PAD.right - 30 ? "end" : "middle";
    svg.append(s("line", { class: "grid", x1: x(time), x2: x(time), y1: HEIGHT - PAD.bottom, y2: HEIGHT - PAD.bottom + 4 }));
    svg.append(s("text", { class: "tick", x: x(time), y: HEIGHT - 6, "text-anchor": near }, long ? words.moment(time) : words.moment(time).slice(-5)));
  }
  plot.series.forEach((series, nth) => {
    const group = s("g", { class: mark(series) });
    if (plot.kind === "bars") {
      const gap = x(step) - x(0) > 4 ? 1 : 0;
      stacks[nth]?.forEach((bar, index) => {
        if (bar.to <= bar.from) return;
        const left = x(at[index] ?? 0);
        group.append(s("rect", { x: left + gap, y: y(bar.to), width: Math.max(0.5, x((at[index] ?? 0) + step) - left - gap), height: Math.max(0.75, y(bar.from) - y(bar.to)) }));
      });
    } else {
      group.append(...lines(series.values, (index) => x((at[index] ?? 0) + step / 2), y));
    }
    svg.append(group);
  });
  const rule = s("line", { class: "rule", y1: PAD.top, y2: HEIGHT - PAD.bottom, visibility: "hidden" });
  svg.append(rule);
  const point = (index: number | null): void => {
    rule.setAttribute("visibility", index === null ? "hidden" : "visible");
    const middle = String(x((at[index ?? 0] ?? 0) + step / 2));
    rule.setAttribute("x1", middle);
    rule.setAttribute("x2", middle);
    onPick(index);
  };
  svg.addEventListener("pointermove", (event) => {
    const inside = (event.clientX - svg.getBoundingClientRect().left - PAD.left) / (width - PAD.left - PAD.right);
    point(inside < 0 || inside >= 1 ? null : Math.floor(inside * at.length));
  });
  svg.addEventListener("pointerleave", () => point(null));
  return svg;
}

/** The classes of a series, in the drawing and in the legend. */
export function mark(series: Series): string {
  return `series series-${series.colour}${series.dashed ? " dashed" : ""}`;
}

/** A line for each run of known values; a single one is a dot. */
function lines(values: readonly (number | null)[], x: (index: number) => number, y: (value: number) => number): SVGElement[] {
  const elements: SVGElement[] = [];
  let run: [number, number][] = [];
  const end = (): void => {
    const [first] = run;
    if (first !== undefined && run.length === 1) elements.push(s("circle", { cx: first[0], cy: first[1], r: 2.5 }));
    else if (first !== undefined) elements.push(s("polyline", { points: run.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ") }));
    run = [];
  };
  values.forEach((value, index) => {
    if (value === null) end();
    else run.push([x(index), y(value)]);
  });
  end();
  return elements;
}
