import { h } from "../view/dom";
import type { Row } from "./answers";
import * as words from "./words";

/** The newest sessions of a range. */
export class SessionTable {
  private readonly body = h("tbody");
  private readonly nothing = h("p", { class: "nothing" }, "No data in this range.");
  private readonly scroll = h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: newest sessions" },
    h(
      "table",
      { "aria-labelledby": "sessions-title" },
      h("thead", {}, h("tr", {}, ...["User", "Tenant", "Started", "Duration", "Responses", "Tokens in", "Tokens out", "Cost"].map((title) => h("th", { scope: "col" }, title)))),
      this.body,
    ),
  );
  readonly element = h("section", { class: "card wide", id: "sessions", "aria-labelledby": "sessions-title" }, h("header", {}, h("h3", { id: "sessions-title" }, "Newest sessions"), h("span", { class: "unit" }, "50 at most")), this.nothing, this.scroll);

  show(rows: readonly Row[]): void {
    this.nothing.hidden = rows.length > 0;
    this.scroll.hidden = rows.length === 0;
    this.body.replaceChildren(...rows.map((row) => tableRow(row)));
  }
}

function tableRow(row: Row): HTMLElement {
  const n = (name: string): number => Number(row[name] ?? 0);
  const cells = [String(row["tenant"] || "–"), words.moment(n("began")), words.duration((n("latest") - n("began")) / 1000), words.count(n("responses")), words.count(n("input_tokens")), words.count(n("output_tokens")), words.short(n("cost_nano") / 1e9)];
  return h("tr", {}, h("th", { scope: "row", title: `${row["issuer"] ?? ""}` }, String(row["subject"] ?? "")), ...cells.map((text) => h("td", {}, text)));
}
