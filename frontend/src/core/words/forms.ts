/* Numbers, times and plural forms of a language. */

export interface Forms {
  number(value: number, digits?: number): string;
  /** A time of day, and a time with its date. `at`: ms since the epoch. */
  time(at: number): string;
  moment(at: number): string;
  /** The form of the language for this count; `other` where that form is missing. */
  plural(count: number, forms: Partial<Record<Intl.LDMLPluralRule, string>> & { other: string }): string;
}

/** `grouping`: whether thousands are separated. */
export function formsFor(language: string, grouping: "min2" | false): Forms {
  const rules = new Intl.PluralRules(language);
  // By the number of decimals. Creating a format costs more than using it many times.
  const formats = new Map<number, Intl.NumberFormat>();
  const format = (digits: number): Intl.NumberFormat => {
    const formatter = formats.get(digits) ?? new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: grouping });
    formats.set(digits, formatter);
    return formatter;
  };
  const times = new Intl.DateTimeFormat(language, { timeStyle: "short" });
  const moments = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
  return {
    time: (at) => times.format(at),
    moment: (at) => moments.format(at),
    number: (value, digits = 0) => format(digits).format(value),
    plural: (count, forms) => forms[rules.select(count)] ?? forms.other,
  };
}
