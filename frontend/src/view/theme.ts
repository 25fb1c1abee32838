import { texts } from "../core/words";
import { h, icon, type IconName } from "./dom";

const KEY = "tailrace.theme";
const ORDER = ["auto", "light", "dark"] as const;
/** As `--ground` in style.css: an installed page has a frame of this colour. */
const GROUND = { light: "#fbfaf8", dark: "#14181a" } as const;
const ICON: Record<(typeof ORDER)[number], IconName> = { auto: "auto", light: "sun", dark: "moon" };

/** Follows the system until the reader chooses; public/early.js applies the choice before the first paint. */
export class Theme {
  readonly element = h("button", { type: "button", class: "theme", onclick: () => this.next() });
  private chosen: (typeof ORDER)[number];

  constructor(private readonly storage: Storage | null) {
    const kept = storage?.getItem(KEY);
    this.chosen = kept === "light" || kept === "dark" ? kept : "auto";
    this.draw();
  }

  private next(): void {
    this.chosen = ORDER[(ORDER.indexOf(this.chosen) + 1) % ORDER.length] ?? "auto";
    try {
      this.storage?.setItem(KEY, this.chosen);
    } catch {
      // It holds until the reload, then.
    }
    this.draw();
  }

  private draw(): void {
    if (this.chosen === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.chosen;
    for (const meta of document.querySelectorAll<HTMLMetaElement>('meta[name="theme-color"]')) {
      const system = meta.media.includes("dark") ? "dark" : "light";
      meta.content = GROUND[this.chosen === "auto" ? system : this.chosen];
    }
    this.element.replaceChildren(icon(ICON[this.chosen]), h("span", {}, { auto: texts().themeAuto, light: texts().themeLight, dark: texts().themeDark }[this.chosen]));
    this.element.title = texts().changeTheme;
  }
}
