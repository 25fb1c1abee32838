import { texts } from "../core/words";
import { h, icon, type IconName } from "./dom";

const KEY = "tailrace.theme";
const ORDER = ["auto", "light", "dark"] as const;
/** The same as `--ground` in style.css: the frame of an installed page has this colour. */
const GROUND = { light: "#fbfaf8", dark: "#14181a" } as const;
const ICON: Record<(typeof ORDER)[number], IconName> = { auto: "auto", light: "sun", dark: "moon" };

/** Follows the system until the reader chooses; public/early.js applies the choice before the first
    paint. */
export class Theme {
  readonly element = h("button", { type: "button", class: "theme", onclick: () => this.next() });
  private choice: (typeof ORDER)[number];

  constructor(private readonly storage: Storage | null) {
    const value = storage?.getItem(KEY);
    this.choice = value === "light" || value === "dark" ? value : "auto";
    this.draw();
  }

  private next(): void {
    this.choice = ORDER[(ORDER.indexOf(this.choice) + 1) % ORDER.length] ?? "auto";
    try {
      this.storage?.setItem(KEY, this.choice);
    } catch {
      // The choice applies until the reload.
    }
    this.draw();
  }

  private draw(): void {
    if (this.choice === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = this.choice;
    for (const meta of document.querySelectorAll<HTMLMetaElement>('meta[name="theme-color"]')) {
      const system = meta.media.includes("dark") ? "dark" : "light";
      meta.content = GROUND[this.choice === "auto" ? system : this.choice];
    }
    this.element.replaceChildren(icon(ICON[this.choice]), h("span", {}, { auto: texts().themeAuto, light: texts().themeLight, dark: texts().themeDark }[this.choice]));
    this.element.title = texts().changeTheme;
  }
}
