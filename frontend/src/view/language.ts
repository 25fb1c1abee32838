import { storePreference, LANGUAGE_NAMES, preference, texts, type Preference } from "../core/words";
import { h, icon } from "./dom";

/** Set for the load of the page after a choice. */
const CHOICE_KEY = "tailrace.language.chosen";

export interface LanguageParts {
  storage: Storage | null;
  /** The storage of this tab. */
  tab: Storage | null;
  reload(): void;
  /** The choice could not be stored. */
  onRefuse(): void;
}

/** The choice of the language. A choice loads the page again; chats, drafts and running answers
    continue. */
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

  /** Whether this load of the page follows a choice. Only the first call returns true. */
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
      // After the reload, the focus is at the start of the page.
    }
    this.parts.reload();
  }
}
