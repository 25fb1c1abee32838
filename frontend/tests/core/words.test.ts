import { afterEach, describe, expect, it } from "vitest";
import { CLOSE_CODES } from "../../src/core/closeCodes";
import { endNote, placeWords } from "../../src/core/messages";
import { newAnswer } from "../../src/core/answer";
import { seconds } from "../../src/core/pace";
import { closePolicy } from "../../src/core/reconnect";
import { storePreference, languageOf, LANGUAGE_NAMES, preference, texts, useLanguage, type Language } from "../../src/core/words";
import { de } from "../../src/core/words/de";
import { en } from "../../src/core/words/en";
import type { Texts } from "../../src/core/words/texts";

const TABLES: Record<Language, Texts> = { en, de };
const LANGUAGES = Object.entries(TABLES);

afterEach(() => useLanguage("en"));

describe.each(LANGUAGES)("the table of %s", (language, table) => {
  it("has every text of the English one, as a function of as many values", () => {
    const shape = (of: object): string[] => Object.entries(of).map(([key, text]) => `${key}: ${typeof text === "function" ? text.length : typeof text}`).sort();
    expect(shape(table)).toEqual(shape(TABLES.en));
  });

  it("names itself by its key, and has no empty text", () => {
    expect(table.code).toBe(language);
    expect(LANGUAGE_NAMES).toHaveProperty(language);
    for (const text of Object.values(table)) if (typeof text !== "function") expect(text).not.toHaveLength(0);
  });

  it("says every value that a text is given", () => {
    for (const [key, text] of Object.entries(table)) {
      if (typeof text !== "function" || text.length === 0) continue;
      const draw = (values: unknown[]): string => (text as (...values: unknown[]) => string)(...values);
      const strings = Array.from({ length: text.length }, (_, place) => `value-${place}`);
      if (TAKES_STRINGS.has(key)) for (const value of strings) expect(draw(strings), key).toContain(value);
      if (TAKES_COUNT.has(key)) for (const count of [0, 1, 2, 7]) expect(draw([count, 0]), key).toContain(String(count));
    }
  });

  it("keeps the mark for a command, and says a word of its own for each final close code", async () => {
    await useLanguage(language as Language);
    expect(table.credentialHint.split("{command}")).toHaveLength(2);
    const finals = Object.keys(CLOSE_CODES).map(Number).filter((code) => closePolicy(code).reconnect === "refused");
    for (const code of finals) expect(closePolicy(code).words).not.toBe(table.endedWithCode(code));
  });
});

function storageOf(records: Map<string, string>): Storage {
  return { getItem: (key: string) => records.get(key) ?? null, setItem: (key: string, value: string) => void records.set(key, value) } as unknown as Storage;
}

const TAKES_STRINGS = new Set([
  "pageTitle", "tryNowHint", "signedInAs", "signInAs", "signInAsQuestion", "linkCredential", "linkCredentialInstead", "stay", "queueOpen", "queueAbout", "busy",
  "sentAgain", "starting", "signInTooMany", "fieldMissing", "answeredBy", "continuesFromHere", "tookOver", "callOf", "cutOffBecause", "engineFailedBecause", "firstToken", "footnote",
  "backToFootnote", "withKey", "formulaFailed", "sharedOn", "sharedUntil", "optionsOf", "linkUntil", "fileExpired", "chatSettingsWith", "removeFile", "uploadAgain", "fileEmpty", "fileTooLarge", "imageNotDecoded", "neitherImageNorText", "notText",
]);
const TAKES_COUNT = new Set([
  "reconnectingIn", "endedWithCode", "queueBefore", "seconds", "minutes", "inSeconds", "serverAnswered", "signInFailed", "moreItems", "moreCharacters", "milliseconds", "secondsWith", "tokens", "instructionsTooLong", "invalidTemperature",
  "invalidLengthUpTo", "atTemperature", "decimal", "upToTokens", "tooManyFiles", "kilobytes", "megabytes", "imagesNotShown", "filesNotShown", "days",
]);

describe("the language", () => {
  it("is the first of the browser's that there is, and English where there is none", () => {
    expect(languageOf("auto", ["fr-FR", "de-AT", "en-US"])).toBe("de");
    expect(languageOf("auto", ["DE"])).toBe("de");
    expect(languageOf("auto", ["en-GB", "de"])).toBe("en");
    expect(languageOf("auto", ["fr", "den", "toString"])).toBe("en");
    expect(languageOf("auto", [])).toBe("en");
  });

  it("is the one that was chosen, whatever the browser asks for", () => {
    expect(languageOf("en", ["de-DE"])).toBe("en");
    expect(languageOf("de", ["en-US"])).toBe("de");
  });

  it("is kept; what is kept and is none counts as no choice", () => {
    const storage = storageOf(new Map());
    expect(preference(storage)).toBe("auto");
    expect(storePreference(storage, "de")).toBe(true);
    expect(preference(storage)).toBe("de");
    storage.setItem("tailrace.language", "constructor");
    expect(preference(storage)).toBe("auto");
  });

  it("is not kept where there is no storage, or no room in it", () => {
    expect(preference(null)).toBe("auto");
    expect(storePreference(null, "de")).toBe(false);
    const full = { getItem: () => null, setItem: () => { throw new DOMException("full", "QuotaExceededError"); } } as unknown as Storage;
    expect(storePreference(full, "de")).toBe(false);
  });

  it("has its own numbers and plural forms", async () => {
    await useLanguage("de");
    expect(texts().newChat).toBe("Neuer Chat");
    expect(seconds(1234)).toBe("1,2 s");
    expect(texts().moreCharacters(120_000)).toBe("120.000 weitere Zeichen sind hier nicht gespeichert.");
    expect(placeWords({ position: 1, etaS: null, atLeast: false })).toBe("1 Anfrage vor deiner …");
    expect(placeWords({ position: 3, etaS: 240, atLeast: true })).toBe("Mindestens 3 Anfragen vor deiner, etwa 4 Minuten");
    expect(endNote({ ...newAnswer("r"), status: "cancelled", text: "So" })?.words).toBe("Gestoppt.");
  });
});
