/** The members of what should be an object of JSON. */
export type Fields = Record<string, unknown>;

/** Null: it is none. */
export function fields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : null;
}
