import { keepPreference, NAMES, preference, texts, type Preference } from "../core/words";
import { h, icon } from "./dom";

/** Set for the load that follows a choice. */
const CHOSEN = "tailrace.language.chosen";

export interface LanguageParts {
  storage: Storage | null;
  /** For this tab alone. */
  tab: Storage | null;
  reload(): void;
  /** The choice could not be kept. */
  refused(): void;
}

/** Chooses the language. The page is then loaded again: chats and drafts are kept, and running answers are picked up. */
export class LanguageChoice {
  readonly element: HTMLElement;
  readonly field = h("select", { "aria-label": texts().language, title: texts().language, onchange: () => this.chosen() });
  private readonly kept: Preference;

  constructor(private readonly parts: LanguageParts) {
    this.kept = preference(parts.storage);
    const named = Object.entries(NAMES).map(([code, name]) => h("option", { value: code, lang: code }, name));
    this.field.append(h("option", { value: "auto" }, texts().languageAuto), ...named);
    this.field.value = this.kept;
    this.element = h("div", { class: "language" }, icon("globe"), this.field);
  }

  /** Whether this load of the page follows a choice; true once. */
  wasChosen(): boolean {
    const found = this.parts.tab?.getItem(CHOSEN) ?? null;
    this.parts.tab?.removeItem(CHOSEN);
    return found !== null;
  }

  private chosen(): void {
    if (!keepPreference(this.parts.storage, this.field.value as Preference)) {
      this.field.value = this.kept;
      this.parts.refused();
      return;
    }
    try {
      this.parts.tab?.setItem(CHOSEN, "yes");
    } catch {
      // The focus is at the beginning, then.
    }
    this.parts.reload();
  }
}
