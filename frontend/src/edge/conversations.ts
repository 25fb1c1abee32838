/* The Conversations API of the gateway. */

import { texts } from "../core/words";
import { readRow, type Row } from "../core/serverTurns";
import { ApiError, type Api } from "./api";

/** An entry of the list. */
export interface Summary {
  readonly id: string;
  readonly name: string;
  readonly pinned: boolean;
  /** Both in ms. */
  readonly createdAt: number;
  readonly usedAt: number;
  /** The last node of the visible path; null: there are no turns yet. */
  readonly head: string | null;
  readonly metadata: Readonly<Record<string, string>>;
}

export interface Page<T> {
  readonly rows: readonly T[];
  /** The id of the last row; null: this is the last page. */
  readonly next: string | null;
}

export interface Match {
  readonly conversation: Summary;
  readonly snippet: string;
}

export interface Tree extends Page<Row> {
  readonly head: string | null;
}

/** The changed members of a conversation. */
export interface Changes {
  readonly title?: string;
  readonly pinned?: boolean;
  readonly head?: string | null;
  /** Replaces all metadata. */
  readonly metadata?: Readonly<Record<string, string>>;
}

type Fields = Record<string, unknown>;

const PAGE = 100;
const MATCHES = 50;
const LONGEST_SEARCH = 256; // characters
const TITLE_TOKENS = 24;

export class Conversations {
  constructor(private readonly api: Pick<Api, "request">) {}

  /** Creates the conversation of this key, once for all calls, and returns its id. */
  async create(key: string, title: string, metadata: Readonly<Record<string, string>>): Promise<string> {
    const body = await this.api.request("POST", "/v1/conversations", { title, metadata: { ...metadata, [PAGE_ID]: key } }, { "Idempotency-Key": key });
    if (typeof body["id"] !== "string") throw new ApiError(502, { code: "bad_answer", message: texts().fieldMissing("id") }, null);
    return body["id"];
  }

  /** The conversations by last use, the latest first. */
  async list(after: string | null): Promise<Page<Summary>> {
    const body = await this.api.request("GET", `/v1/conversations?limit=${PAGE}${after === null ? "" : `&after=${encodeURIComponent(after)}`}`, null);
    return page(body, readSummary);
  }

  async find(id: string): Promise<Summary | null> {
    return readSummary(await this.api.request("GET", path(id), null));
  }

  /** The nodes after `after`, in the order of creation. */
  async turns(id: string, after: string | null): Promise<Tree> {
    const body = await this.api.request("GET", `${path(id)}/turns?limit=${PAGE}${after === null ? "" : `&after=${encodeURIComponent(after)}`}`, null);
    return { ...page(body, readRow), head: typeof body["head"] === "string" ? body["head"] : null };
  }

  /** The conversations with these words, and the text around them. */
  async search(words: string): Promise<Match[]> {
    const body = await this.api.request("GET", `/v1/conversations/search?limit=${MATCHES}&q=${encodeURIComponent(Array.from(words).slice(0, LONGEST_SEARCH).join(""))}`, null);
    return page(body, readMatch).rows.slice();
  }

  async change(id: string, changes: Changes): Promise<void> {
    await this.api.request("POST", path(id), changes);
  }

  /** Deletes a conversation and its responses. */
  async remove(id: string): Promise<void> {
    await this.api.request("DELETE", `${path(id)}?responses=true`, null);
  }

  /** A title for a chat with this first question and answer; empty: the model wrote none. */
  async titleFor(model: string | null, question: string, answer: string): Promise<string> {
    const body = await this.api.request("POST", "/v1/responses", {
      ...(model === null ? {} : { model }),
      instructions: texts().titlePrompt,
      input: `${question.slice(0, 1000)}\n\n${answer.slice(0, 1000)}`,
      max_output_tokens: TITLE_TOKENS,
      store: false,
      metadata: { purpose: "title" },
    });
    return outputText(body);
  }
}

/** The metadata key of the id that this page uses for the conversation in all browsers. */
export const PAGE_ID = "page.id";

function path(id: string): string {
  return `/v1/conversations/${encodeURIComponent(id)}`;
}

function page<T>(body: Fields, parse: (value: unknown) => T | null): Page<T> {
  const data = Array.isArray(body["data"]) ? body["data"] : [];
  const next = body["has_more"] === true && typeof body["last_id"] === "string" ? body["last_id"] : null;
  return { rows: data.map(parse).filter((row) => row !== null), next };
}

export function readSummary(value: unknown): Summary | null {
  if (typeof value !== "object" || value === null) return null;
  const fields = value as Fields;
  const [id, created] = [fields["id"], fields["created_at"]];
  if (typeof id !== "string" || typeof created !== "number") return null;
  const metadata = typeof fields["metadata"] === "object" && fields["metadata"] !== null ? (fields["metadata"] as Record<string, string>) : {};
  return {
    id,
    name: typeof fields["title"] === "string" ? fields["title"] : "",
    pinned: fields["pinned"] === true,
    createdAt: created * 1000,
    usedAt: (typeof fields["updated_at"] === "number" ? fields["updated_at"] : created) * 1000,
    head: typeof fields["head"] === "string" ? fields["head"] : null,
    metadata,
  };
}

function readMatch(value: unknown): Match | null {
  const fields = value as Fields | null;
  const conversation = readSummary(fields?.["conversation"]);
  return conversation === null ? null : { conversation, snippet: typeof fields?.["snippet"] === "string" ? fields["snippet"] : "" };
}

function outputText(response: Fields): string {
  const items = Array.isArray(response["output"]) ? (response["output"] as Fields[]) : [];
  const parts = items.flatMap((item) => (item["type"] === "message" && Array.isArray(item["content"]) ? (item["content"] as Fields[]) : []));
  return parts.map((part) => (typeof part["text"] === "string" ? part["text"] : "")).join("");
}
