import { storePreference, LANGUAGE_NAMES, preference, texts, type Preference } from "../core/words";
import { h, icon } from "./dom";

/** Set for the load that follows a choice. */
const CHOICE_KEY = "tailrace.language.chosen";

export interface LanguageParts {
  storage: Storage | null;
  /** For this tab alone. */
  tab: Storage | null;
  reload(): void;
  /** The choice could not be kept. */
  onRefuse(): void;
}

/** Chooses the language. The page is then loaded again: chats and drafts are kept, and running answers are picked up. */
export class LanguageChoice {
  readonly element: HTMLElement;
  readonly field = h("select", { "aria-label": texts().language, title: texts().language, onchange: () => this.onChoice() });
  private readonly current: Preference;

  constructor(private readonly parts: LanguageParts) {
    this.current = preference(parts.storage);
    const options = Object.entries(LANGUAGE_NAMES).map(([code, name]) => h("option", { value: code, lang: code }, name));
    this.field.append(h("option", { value: "auto" }, texts().languageAuto), ...options);
    this.field.value = this.current;
    this.element = h("div", { class: "language" }, icon("globe"), this.field);
  }

  /** Whether this load of the page follows a choice; true once. */
  popChoice(): boolean {
    const mark = this.parts.tab?.getItem(CHOICE_KEY) ?? null;
    this.parts.tab?.removeItem(CHOICE_KEY);
    return mark !== null;
  }

  private onChoice(): void {
    if (!storePreference(this.parts.storage, this.field.value as Preference)) {
      this.field.value = this.current;
      this.parts.onRefuse();
      return;
    }
    try {
      this.parts.tab?.setItem(CHOICE_KEY, "yes");
    } catch {
      // The focus is at the beginning, then.
    }
    this.parts.reload();
  }
}
