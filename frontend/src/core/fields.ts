/** The members of a JSON object. */
export type Fields = Record<string, unknown>;

/** Null: not a JSON object. */
export function fields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : null;
}
