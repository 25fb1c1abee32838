/* Parses the chat that a shared link shows. */

export interface SharedMessage {
  readonly role: "user" | "assistant";
  readonly text: string;
  /** The number of images, and of files, that are not shown. */
  readonly images: number;
  readonly files: number;
  /** The text continues the message before it. */
  readonly continues: boolean;
}

/** One page of a shared chat; the first has its beginning. */
export interface SharedPage {
  /** Empty: none. */
  readonly title: string;
  /** Both in ms. */
  readonly sharedAt: number;
  readonly endsAt: number;
  readonly messages: readonly SharedMessage[];
  /** Where the next page begins; null: this is the last page. */
  readonly next: number | null;
}

/** Null: the body is invalid. */
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

/** Joins each message with those that continue it. */
export function mergeMessages(messages: readonly SharedMessage[]): readonly SharedMessage[] {
  const out: SharedMessage[] = [];
  for (const message of messages) {
    const last = out.at(-1);
    // The length limit may have cut a character in two: the next text has the whole character.
    if (message.continues && last?.role === message.role) out[out.length - 1] = { ...last, text: last.text.replace(/\ufffd$/, "") + message.text };
    else out.push(message);
  }
  return out;
}

/** The title, otherwise the first question; empty where there is neither. */
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
