/* What a reader sets for a chat: who answers, how it is told to, and how. The server inherits none of it, so all of it
   goes with every request. */

export interface Settings {
  /** null: the server's default model. */
  readonly model: string | null;
  /** Empty: none. */
  readonly instructions: string;
  /** null: the model's own; else from 0 to 2. */
  readonly temperature: number | null;
  /** The longest answer, in tokens; null: the model's own. */
  readonly length: number | null;
}

/** Settings that belong to a chat, and when they were made (ms). Of two the later ones hold. */
export interface Chosen extends Settings {
  readonly at: number;
}

export const USUAL: Settings = { model: null, instructions: "", temperature: null, length: null };

export const MAX_TEMPERATURE = 2;
/** In UTF-16 units, so never more pieces of metadata than there are keys for. */
export const MAX_INSTRUCTIONS = 4096;
/** Above every model's length: what a certain one takes is another bound. */
const MAX_LENGTH = 10_000_000;

/** Which of the fields cannot be sent. */
export type Wrong = "instructions" | "temperature" | "length";

/** What a reader typed: null for what was left at the default. */
export interface Typed {
  readonly instructions: string;
  readonly temperature: string | null;
  readonly length: string | null;
}

/** The settings that were typed, or what is wrong with them. `longest`: the model's longest answer; null: not known. */
export function readTyped(model: string | null, typed: Typed, longest: number | null): Settings | readonly Wrong[] {
  const temperature = typed.temperature === null ? null : number(typed.temperature);
  const length = typed.length === null ? null : number(typed.length);
  const settings = { model, instructions: typed.instructions.trim(), temperature, length };
  const wrong: Wrong[] = [];
  if (settings.instructions.length > MAX_INSTRUCTIONS) wrong.push("instructions");
  if (temperature !== null && !isTemperature(temperature)) wrong.push("temperature");
  if (length !== null && (!isLength(length) || length > (longest ?? Infinity))) wrong.push("length");
  return wrong.length === 0 ? settings : wrong;
}

// A comma is how many readers write a decimal point.
function number(text: string): number {
  return text.trim() === "" ? NaN : Number(text.trim().replace(",", "."));
}

/** Whether anything besides the model differs from what a new chat has. */
export function isUsual({ instructions, temperature, length }: Settings): boolean {
  return instructions === "" && temperature === null && length === null;
}

export function isSame(a: Settings, b: Settings): boolean {
  return a.model === b.model && a.instructions === b.instructions && a.temperature === b.temperature && a.length === b.length;
}

/** The later ones; of two of one millisecond any fixed ones will do. */
export function later(a: Chosen, b: Chosen): Chosen {
  if (a.at !== b.at) return a.at > b.at ? a : b;
  return order(a) >= order(b) ? a : b;
}

function order({ model, instructions, temperature, length }: Settings): string {
  return JSON.stringify([model, instructions, temperature, length]);
}

/** What was stored may be of another version of this page or damaged. */
export function readSettings(kept: unknown): Settings {
  const { model, instructions, temperature, length } = (typeof kept === "object" && kept !== null ? kept : {}) as Record<keyof Settings, unknown>;
  return {
    model: typeof model === "string" && model !== "" ? model : null,
    instructions: typeof instructions === "string" ? instructions.slice(0, MAX_INSTRUCTIONS) : "",
    temperature: isTemperature(temperature) ? temperature : null,
    length: isLength(length) ? length : null,
  };
}

export function readChosen(kept: unknown): Chosen {
  const at = (kept as Chosen | null | undefined)?.at;
  return { ...readSettings(kept), at: typeof at === "number" && Number.isFinite(at) ? at : 0 };
}

function isTemperature(value: unknown): value is number {
  return typeof value === "number" && value >= 0 && value <= MAX_TEMPERATURE;
}

function isLength(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 1 && (value as number) <= MAX_LENGTH;
}

// ---- as metadata of a conversation on the server, whose values are texts of at most 512 characters

const PIECE = 512;
const PIECES = 8;

/** Only what is not usual is said. */
export function toMetadata(settings: Settings): Record<string, string> {
  const { model, instructions, temperature, length } = settings;
  const characters = Array.from(instructions.slice(0, MAX_INSTRUCTIONS)); // no piece ends within a character
  const found: Record<string, string> = {};
  if (model !== null && Array.from(model).length <= PIECE) found["page.model"] = model;
  if (temperature !== null) found["page.temperature"] = String(temperature);
  if (length !== null) found["page.length"] = String(length);
  for (let piece = 0; piece * PIECE < characters.length; piece += 1) {
    found[`page.instructions.${piece}`] = characters.slice(piece * PIECE, (piece + 1) * PIECE).join("");
  }
  return found;
}

/** What is not there, or was not written by this page, is as usual. */
export function fromMetadata(metadata: unknown): Settings {
  const said = (typeof metadata === "object" && metadata !== null ? metadata : {}) as Record<string, unknown>;
  const text = (key: string): string => {
    const value = Object.hasOwn(said, key) ? said[key] : undefined;
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
