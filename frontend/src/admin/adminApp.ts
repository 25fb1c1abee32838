import { h, setText } from "../view/dom";
import { Theme } from "../view/theme";
import type { Analytics, Pipeline } from "./answers";
import { PipelineTable } from "./pipelineTable";
import { PlotCard } from "./plotCard";
import { plots, times, type By } from "./series";
import { SessionTable } from "./sessionTable";
import * as words from "./words";

const RANGES: [string, string][] = [
  ["15", "15 minutes"],
  ["60", "1 hour"],
  ["360", "6 hours"],
  ["1440", "24 hours"],
  ["10080", "7 days"],
  ["43200", "30 days"],
];

/** A problem of one half of the page. `old`: the last figures are still shown. */
export interface Problem {
  words: string;
  old: boolean;
  /** Whether another credential could solve it. */
  signIn: boolean;
}

/** The page: pipelines at the top, analytics below. */
export class AdminApp {
  private readonly pipelineTable = new PipelineTable();
  private readonly sessionTable = new SessionTable();
  private readonly cards = new Map<string, PlotCard>();
  private readonly plots = h("div", { class: "plots" });
  private readonly range: HTMLSelectElement;
  private readonly by: HTMLSelectElement;
  private readonly pipelinesHalf: Half;
  private readonly analyticsHalf: Half;
  private analytics: Analytics | null = null;

  constructor(root: HTMLElement, storage: Storage | null, account: HTMLElement, onChange: () => void, signIn: () => void) {
    this.range = select("range", RANGES, "60", onChange);
    this.by = select("by", [["model", "model"], ["tenant", "tenant"]], "model", () => this.drawAnalytics());
    const controls = h("div", { class: "controls" }, h("label", { for: "range" }, "Range"), this.range, h("label", { for: "by" }, "By"), this.by);
    this.pipelinesHalf = new Half("pipelines", "Pipelines", null, this.pipelineTable.element, signIn);
    this.analyticsHalf = new Half("analytics", "Analytics", controls, this.plots, signIn);
    root.replaceChildren(
      h("header", { class: "top" }, h("h1", {}, "Tailrace ", h("span", {}, "pipelines and analytics")), h("div", { class: "who" }, account, new Theme(storage).element)),
      h("main", {}, this.pipelinesHalf.element, this.analyticsHalf.element),
    );
  }

  get minutes(): number {
    return Number(this.range.value);
  }

  showPipelines(pipelines: Pipeline[]): void {
    this.pipelineTable.show(pipelines);
    this.pipelinesHalf.markCurrent();
  }

  showAnalytics(analytics: Analytics): void {
    this.analytics = analytics;
    this.drawAnalytics();
    this.analyticsHalf.markCurrent();
  }

  problem(half: "pipelines" | "analytics", problem: Problem): void {
    (half === "pipelines" ? this.pipelinesHalf : this.analyticsHalf).problem(problem);
  }

  /** Removes all figures: another user must not see them. */
  clear(why: string, signIn = false): void {
    this.analytics = null;
    this.pipelineTable.show([]);
    for (const half of [this.pipelinesHalf, this.analyticsHalf]) half.problem({ words: why, old: false, signIn });
  }

  private drawAnalytics(): void {
    const { analytics } = this;
    if (analytics === null) return;
    const at = times(analytics);
    for (const plot of plots(analytics, this.by.value as By)) {
      let card = this.cards.get(plot.id);
      if (card === undefined) {
        card = new PlotCard(plot.id);
        this.cards.set(plot.id, card);
        this.plots.append(card.element);
      }
      card.show(plot, at, analytics.step);
    }
    this.plots.append(this.sessionTable.element);
    this.sessionTable.show(analytics.results["latest_sessions"] ?? []);
  }
}

/** One half of the page: its title, its problem and its content. */
class Half {
  private readonly when = h("span", { class: "when" });
  private readonly words = h("span", {});
  private readonly button: HTMLButtonElement;
  private readonly trouble: HTMLElement;
  readonly element: HTMLElement;
  private last: number | null = null;

  constructor(id: string, title: string, controls: HTMLElement | null, private readonly content: HTMLElement, signIn: () => void) {
    this.button = h("button", { type: "button", class: "secondary", onclick: signIn }, "Sign in");
    this.trouble = h("div", { class: "trouble", role: "status", hidden: true }, this.words, this.button);
    this.element = h("section", { class: "half", id, "aria-labelledby": `${id}-title` }, h("header", {}, h("h2", { id: `${id}-title` }, title), this.when, ...(controls === null ? [] : [controls])), this.trouble, content);
    content.hidden = true;
  }

  markCurrent(): void {
    this.last = Date.now();
    this.content.hidden = false;
    this.trouble.hidden = true;
    this.element.classList.remove("old");
    setText(this.when, `as of ${words.clock(this.last)}`);
  }

  problem(problem: Problem): void {
    const keepsFigures = problem.old && this.last !== null;
    if (!problem.old) this.last = null;
    this.content.hidden = !keepsFigures;
    this.element.classList.toggle("old", keepsFigures);
    setText(this.when, keepsFigures && this.last !== null ? `as of ${words.clock(this.last)}` : "");
    setText(this.words, keepsFigures ? `${problem.words} These are the last figures. The page tries again.` : problem.words);
    this.button.hidden = !problem.signIn;
    this.trouble.hidden = false;
  }
}

function select(id: string, options: [string, string][], initial: string, onChange: () => void): HTMLSelectElement {
  const element = h("select", { id, onchange: onChange }, ...options.map(([value, title]) => h("option", { value }, title)));
  element.value = initial;
  return element;
}
