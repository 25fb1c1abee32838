/* The settings of a chat: model, instructions, temperature and length. The server does not inherit
   them from turn to turn, so every request has all of them. */

export interface Settings {
  /** null: the server's default model. */
  readonly model: string | null;
  /** Empty: none. */
  readonly instructions: string;
  /** From 0 to 2; null: the model's default. */
  readonly temperature: number | null;
  /** The longest answer, in tokens; null: the model's default. */
  readonly length: number | null;
}

/** The settings of a chat, and when they were set (ms). Of two, the later ones apply. */
export interface StampedSettings extends Settings {
  readonly at: number;
}

export const DEFAULT_SETTINGS: Settings = { model: null, instructions: "", temperature: null, length: null };

export const MAX_TEMPERATURE = 2;
/** In UTF-16 units, so the pieces always fit into the metadata keys. */
export const MAX_INSTRUCTIONS = 4096;
/** Above every model's limit. A model's own limit is checked separately. */
const MAX_LENGTH = 10_000_000;

/** The name of a field with an invalid value. */
export type InvalidField = "instructions" | "temperature" | "length";

/** The values that a reader typed; null: the default. */
export interface SettingsInput {
  readonly instructions: string;
  readonly temperature: string | null;
  readonly length: string | null;
}

/** The settings, or the names of the invalid fields. `longest`: the model's longest answer; null:
    not known. */
export function readInput(model: string | null, input: SettingsInput, longest: number | null): Settings | readonly InvalidField[] {
  const temperature = input.temperature === null ? null : number(input.temperature);
  const length = input.length === null ? null : number(input.length);
  const settings = { model, instructions: input.instructions.trim(), temperature, length };
  const invalid: InvalidField[] = [];
  if (settings.instructions.length > MAX_INSTRUCTIONS) invalid.push("instructions");
  if (temperature !== null && !isTemperature(temperature)) invalid.push("temperature");
  if (length !== null && (!isLength(length) || length > (longest ?? Infinity))) invalid.push("length");
  return invalid.length === 0 ? settings : invalid;
}

// Many readers write a decimal comma.
function number(text: string): number {
  return text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
}

/** Whether all settings except the model have their defaults. */
export function isDefault({ instructions, temperature, length }: Settings): boolean {
  return instructions === "" && temperature === null && length === null;
}

export function isSame(a: Settings, b: Settings): boolean {
  return a.model === b.model && a.instructions === b.instructions && a.temperature === b.temperature && a.length === b.length;
}

/** The later settings. For two in one millisecond any fixed order is enough. */
export function latest(a: StampedSettings, b: StampedSettings): StampedSettings {
  if (a.at !== b.at) return a.at > b.at ? a : b;
  return sortKey(a) >= sortKey(b) ? a : b;
}

function sortKey({ model, instructions, temperature, length }: Settings): string {
  return JSON.stringify([model, instructions, temperature, length]);
}

/** The record may be damaged, or from another version of this page. */
export function readSettings(record: unknown): Settings {
  const { model, instructions, temperature, length } = (typeof record === "object" && record !== null ? record : {}) as Record<keyof Settings, unknown>;
  return {
    model: typeof model === "string" && model !== "" ? model : null,
    instructions: typeof instructions === "string" ? instructions.slice(0, MAX_INSTRUCTIONS) : "",
    temperature: isTemperature(temperature) ? temperature : null,
    length: isLength(length) ? length : null,
  };
}

export function readStampedSettings(record: unknown): StampedSettings {
  const at = (record as StampedSettings | null | undefined)?.at;
  return { ...readSettings(record), at: typeof at === "number" && Number.isFinite(at) ? at : 0 };
}

function isTemperature(value: unknown): value is number {
  return typeof value === "number" && value >= 0 && value <= MAX_TEMPERATURE;
}

function isLength(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 1 && (value as number) <= MAX_LENGTH;
}

// ---- metadata of a conversation on the server: a value is a text of at most 512 characters

const PIECE = 512;
const PIECES = 8;

/** Only settings that differ from the defaults. */
export function toMetadata(settings: Settings): Record<string, string> {
  const { model, instructions, temperature, length } = settings;
  const characters = Array.from(instructions.slice(0, MAX_INSTRUCTIONS)); // so that no piece ends within a character
  const metadata: Record<string, string> = {};
  if (model !== null && Array.from(model).length <= PIECE) metadata["page.model"] = model;
  if (temperature !== null) metadata["page.temperature"] = String(temperature);
  if (length !== null) metadata["page.length"] = String(length);
  for (let piece = 0; piece * PIECE < characters.length; piece += 1) {
    metadata[`page.instructions.${piece}`] = characters.slice(piece * PIECE, (piece + 1) * PIECE).join("");
  }
  return metadata;
}

/** A value that is missing or invalid gives the default. */
export function fromMetadata(metadata: unknown): Settings {
  const entries = (typeof metadata === "object" && metadata !== null ? metadata : {}) as Record<string, unknown>;
  const text = (key: string): string => {
    const value = Object.hasOwn(entries, key) ? entries[key] : undefined;
    return typeof value === "string" ? value : "";
  };
  let instructions = "";
  for (let piece = 0; piece < PIECES; piece += 1) {
    const words = text(`page.instructions.${piece}`);
    if (words === "") break;
    instructions += words;
  }
  return readSettings({
    model: text("page.model"),
    instructions,
    temperature: number(text("page.temperature")),
    length: number(text("page.length")),
  });
}
