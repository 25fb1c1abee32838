/* What a link to a conversation shows, read strictly. */

export interface SharedMessage {
  readonly role: "user" | "assistant";
  readonly text: string;
  /** So many of them are not shown. */
  readonly images: number;
  readonly files: number;
  /** The text goes on with that before it. */
  readonly continues: boolean;
}

/** A part of it; the first one has its beginning. */
export interface SharedPage {
  /** Empty: it has none. */
  readonly title: string;
  /** Both in ms. */
  readonly sharedAt: number;
  readonly endsAt: number;
  readonly messages: readonly SharedMessage[];
  /** Where the rest begins; null: there is none. */
  readonly next: number | null;
}

/** Null: it is not what the protocol says. */
export function readShared(body: unknown): SharedPage | null {
  const { title, created_at, expires_at, data, next } = fields(body);
  if (typeof created_at !== "number" || typeof expires_at !== "number" || !Array.isArray(data)) return null;
  return {
    title: typeof title === "string" ? title : "",
    sharedAt: created_at * 1000,
    endsAt: expires_at * 1000,
    messages: data.flatMap((row) => readMessage(fields(row))),
    next: typeof next === "number" ? next : null,
  };
}

/** The messages as they are read: those that continue one another are one. */
export function mergeMessages(messages: readonly SharedMessage[]): readonly SharedMessage[] {
  const out: SharedMessage[] = [];
  for (const message of messages) {
    const last = out.at(-1);
    // The bound may have cut a character in two: the text behind it has the whole one.
    if (message.continues && last?.role === message.role) out[out.length - 1] = { ...last, text: last.text.replace(/\ufffd$/, "") + message.text };
    else out.push(message);
  }
  return out;
}

/** What it is called: its title, else its first question. Empty: it has neither. */
export function chatName(title: string, messages: readonly SharedMessage[]): string {
  const name = (title || (messages.find(({ role, text }) => role === "user" && text.trim() !== "")?.text ?? "")).trim().replace(/\s+/g, " ");
  return name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1).trimEnd()}…` : name;
}

const LONGEST_NAME = 120;

// Unknown rows, of a later server, are left out.
function readMessage({ role, text, images, files, continues }: Fields): SharedMessage[] {
  if ((role !== "user" && role !== "assistant") || typeof text !== "string") return [];
  return [{ role, text, images: count(images), files: count(files), continues: continues === true }];
}

type Fields = Record<string, unknown>;

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function count(value: unknown): number {
  return typeof value === "number" && value > 0 ? Math.floor(value) : 0;
}
