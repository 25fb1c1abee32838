/* The texts of the chat page, one table per language, and which of them is shown. A language is one file in `words/`, its
   name in `NAMES`, and what brings it in `LATER`: a reader needs one of them. */

import { en } from "./words/en";
import type { Texts } from "./words/texts";

/** Of the languages, each in itself. */
export const LANGUAGE_NAMES = { en: "English", de: "Deutsch" };

export type Language = keyof typeof LANGUAGE_NAMES;

const LOADERS: Record<Exclude<Language, "en">, () => Promise<Texts>> = {
  de: async () => (await import("./words/de")).de,
};

/** What the reader chose; `auto`: as the browser asks for. */
export type Preference = Language | "auto";

const KEY = "tailrace.language";

let current: Texts = en;

/** The texts of the language in use. They are read when something is drawn: a constant would keep the language of the
    moment in which its module was loaded. */
export function texts(): Texts {
  return current;
}

/** Called once, before anything is drawn. English where the table cannot be had. */
export async function useLanguage(language: Language): Promise<void> {
  current = language === "en" ? en : await LOADERS[language]().catch(() => en);
}

export function preference(storage: Storage | null): Preference {
  const choice = storage?.getItem(KEY) ?? "";
  return isLanguage(choice) ? choice : "auto";
}

/** false: it could not be kept. */
export function storePreference(storage: Storage | null, preferred: Preference): boolean {
  try {
    storage?.setItem(KEY, preferred);
    return storage !== null;
  } catch {
    return false;
  }
}

/** `wanted`: the browser's languages, the best first, such as "de-AT". English where we have none of them. */
export function languageOf(preferred: Preference, browserLanguages: readonly string[]): Language {
  if (preferred !== "auto") return preferred;
  return browserLanguages.map((tag) => tag.toLowerCase().split("-")[0] ?? "").find(isLanguage) ?? "en";
}

function isLanguage(name: string): name is Language {
  return Object.hasOwn(LANGUAGE_NAMES, name);
}
