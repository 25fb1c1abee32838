/* The texts of the chat page, one table per language, and the language in use. A language is a file
   in `words/`, its name in `LANGUAGE_NAMES`, and its loader in `LOADERS`: only the table in use is
   loaded. */

import { en } from "./words/en";
import type { Texts } from "./words/texts";

/** The name of each language in that language. */
export const LANGUAGE_NAMES = { en: "English", de: "Deutsch" };

export type Language = keyof typeof LANGUAGE_NAMES;

const LOADERS: Record<Exclude<Language, "en">, () => Promise<Texts>> = {
  de: async () => (await import("./words/de")).de,
};

/** The reader's choice; `auto`: the browser's language. */
export type Preference = Language | "auto";

const KEY = "tailrace.language";

let current: Texts = en;

/** The texts of the language in use. Call it when something is drawn: a constant would have the
    language from before `useLanguage`. */
export function texts(): Texts {
  return current;
}

/** Called once, before anything is drawn. English where the table cannot be loaded. */
export async function useLanguage(language: Language): Promise<void> {
  current = language === "en" ? en : await LOADERS[language]().catch(() => en);
}

export function preference(storage: Storage | null): Preference {
  const choice = storage?.getItem(KEY) ?? "";
  return isLanguage(choice) ? choice : "auto";
}

/** false: the choice could not be stored. */
export function storePreference(storage: Storage | null, preferred: Preference): boolean {
  try {
    storage?.setItem(KEY, preferred);
    return storage !== null;
  } catch {
    return false;
  }
}

/** `browserLanguages`: tags such as "de-AT", the preferred first. English where the page has none
    of them. */
export function languageOf(preferred: Preference, browserLanguages: readonly string[]): Language {
  if (preferred !== "auto") return preferred;
  return browserLanguages.map((tag) => tag.toLowerCase().split("-")[0] ?? "").find(isLanguage) ?? "en";
}

function isLanguage(name: string): name is Language {
  return Object.hasOwn(LANGUAGE_NAMES, name);
}
