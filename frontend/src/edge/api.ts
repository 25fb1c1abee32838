/* The gateway over HTTP. Every failed request throws an ApiError. */

import type { Attachment, Kind } from "../core/attachments";
import type { Context } from "../core/context";
import { needsSignIn } from "../core/messages";
import { readFault, type Fault } from "../core/protocol";
import { texts } from "../core/words";

export interface Config {
  pushUrls: string[];
  models: string[];
  defaultModel: string | null;
  /** By model. A missing value means: not accepted. */
  takes: Readonly<Record<string, Takes>>;
  version: string;
  /** Whether the server stores conversations. */
  conversations: boolean;
  /** Whether the page may ask the model for titles. */
  titles: boolean;
  /** Whether the server creates links that show a chat to others. */
  shares: boolean;
  /** Whether the server searches conversations. */
  searches: boolean;
}

/** The inputs that a model accepts. */
export interface Takes {
  /** null: not known, because no worker of the model runs. */
  images: boolean | null;
  /** Texts. */
  files: boolean;
  /** The longest answer, in tokens; null: not known. */
  maxOutputTokens: number | null;
}

export interface Engine {
  state: "none" | "loading" | "ready";
  detail: string;
}

export interface Ask {
  model: string | null;
  /** Empty: none. */
  instructions: string;
  /** null: the model's default; also for `maxOutputTokens`. */
  temperature: number | null;
  maxOutputTokens: number | null;
  input: Context["input"];
  previousResponseId: string | null;
  /** The conversation on the server in which it follows the previous response; null: none. */
  conversation: string | null;
  /** Older messages may be left out where the model cannot read all. */
  trimmed: boolean;
  /** The idempotency key: the same for the same question, so that a repeated request has one
      answer. */
  key: string;
  metadata: Record<string, string>;
}

/** `status` 0: the gateway was not reached, or its reply was lost. It may have received the
    request. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly fault: Fault,
    readonly retryAfterMs: number | null,
  ) {
    super(fault.message);
  }
}

export interface SessionHeaders {
  /** The headers that a change needs in addition to the cookie. */
  headers(): Record<string, string>;
  renew(): Promise<boolean>;
}

/** The code of a request that did not reach the gateway. */
export const UNREACHABLE = "unreachable";
const TIMEOUT_MS = 15_000;
const TRANSFER_MS = 120_000; // of a file

export class Api {
  constructor(
    private readonly base: string,
    private readonly session: SessionHeaders,
  ) {}

  async config(): Promise<Config> {
    return readConfig(await this.call("GET", "/config.json", null, {}));
  }

  /** null: not known. A gateway that is not ready answers 503 with the same body. */
  async engine(): Promise<Engine | null> {
    const answer = await fetch(`${this.base}/ready`, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    const engine = record(record(await answer.json())["engine"]);
    const state = engine["state"];
    if (state !== "none" && state !== "loading" && state !== "ready") return null;
    return { state, detail: typeof engine["detail"] === "string" ? engine["detail"] : "" };
  }

  /** Whether the gateway answers within `ms`, with any status. */
  async isReachable(ms: number): Promise<boolean> {
    return fetch(`${this.base}/ready`, { signal: AbortSignal.timeout(ms), cache: "no-store" }).then(
      () => true,
      () => false,
    );
  }

  /** Resolves with the id of the accepted response. */
  async ask(ask: Ask): Promise<string> {
    const body = await this.request("POST", "/v1/responses", {
      ...(ask.model === null ? {} : { model: ask.model }),
      input: ask.input,
      ...conversationFields(ask),
      ...(ask.instructions === "" ? {} : { instructions: ask.instructions }),
      ...(ask.temperature === null ? {} : { temperature: ask.temperature }),
      ...(ask.maxOutputTokens === null ? {} : { max_output_tokens: ask.maxOutputTokens }),
      ...(ask.trimmed ? { truncation: "auto" } : {}),
      background: true,
      store: true,
      metadata: ask.metadata,
    }, { "Idempotency-Key": ask.key });
    return stringField(body, "id");
  }

  async cancel(responseId: string): Promise<void> {
    await this.request("POST", `/v1/responses/${encodeURIComponent(responseId)}/cancel`, {}, {});
  }

  /** `key`: the same for the same file, so that a repeated upload creates no second file. */
  async upload(file: Blob, name: string, kind: Kind, key: string): Promise<Attachment> {
    const form = new FormData();
    form.set("purpose", kind === "image" ? "vision" : "user_data");
    form.set("file", file, name);
    const body = await this.request("POST", "/v1/files", form, { "Idempotency-Key": key });
    const expiresAt = typeof body["expires_at"] === "number" ? body["expires_at"] * 1000 : 0;
    return { fileId: stringField(body, "id"), name, kind, bytes: file.size, expiresAt };
  }

  /** The bytes of an upload; null: the server does not have it, or was not reached. */
  async content(fileId: string): Promise<Blob | null> {
    return this.get(`/v1/files/${encodeURIComponent(fileId)}/content`, async (answer) => answer.blob());
  }

  /** The input images of a response as data URLs, in order; null: as for `content`. */
  async inputImages(responseId: string): Promise<string[] | null> {
    const items = await this.get(`/v1/responses/${encodeURIComponent(responseId)}/input_items?order=asc&limit=100`, async (answer) => record(await answer.json())["data"]);
    if (!Array.isArray(items)) return null;
    const parts = items.flatMap((item) => record(item)["content"] ?? []);
    return strings(parts.map((part) => record(part)["image_url"])).filter((url) => url.startsWith("data:"));
  }

  private async get<T>(path: string, parse: (answer: Response) => Promise<T>): Promise<T | null> {
    const options = { signal: AbortSignal.timeout(TRANSFER_MS), credentials: "same-origin" as const };
    return fetch(this.base + path, options).then(
      (answer) => (answer.ok ? parse(answer).catch(() => null) : null),
      () => null,
    );
  }

  async ticket(): Promise<string> {
    return stringField(await this.request("POST", "/v1/tickets", {}, {}), "ticket");
  }

  /** Returns the body of the reply. If the session has ended, or another tab has begun a new one,
      the session is renewed and the request repeated once. Throws ApiError. */
  async request(method: string, path: string, body: object | null, headers: Record<string, string> = {}): Promise<Record<string, unknown>> {
    try {
      return await this.call(method, path, body, { ...headers, ...this.session.headers() });
    } catch (error) {
      if (!(error instanceof ApiError && needsSignIn(error.status, error.fault)) || !(await this.session.renew())) throw error;
      return this.call(method, path, body, { ...headers, ...this.session.headers() });
    }
  }

  private async call(method: string, path: string, body: object | null, headers: Record<string, string>): Promise<Record<string, unknown>> {
    let answer: Response;
    let parsed: unknown;
    try {
      answer = await fetch(this.base + path, {
        method,
        // The browser sets the type of a form.
        headers: body === null || body instanceof FormData ? headers : { ...headers, "Content-Type": "application/json" },
        body: body === null || body instanceof FormData ? body : JSON.stringify(body),
        signal: AbortSignal.timeout(body instanceof FormData ? TRANSFER_MS : TIMEOUT_MS),
        cache: "no-store",
        credentials: "same-origin",
      });
      parsed = await answer.json().catch(() => null);
    } catch {
      throw new ApiError(0, { code: UNREACHABLE, message: texts().unreachable }, null);
    }
    if (answer.ok && parsed !== null) return record(parsed);
    const fault = readFault(record(parsed)["error"]) ?? { code: "http_error", message: texts().serverAnswered(answer.status) };
    throw new ApiError(answer.ok ? 502 : answer.status, fault, retryAfter(answer.headers));
  }
}

function conversationFields({ conversation, previousResponseId }: Ask): object {
  if (conversation !== null) return { conversation: { id: conversation, parent: previousResponseId } };
  return previousResponseId === null ? {} : { previous_response_id: previousResponseId };
}

/** Parses the body of `/config.json`. */
export function readConfig(json: unknown): Config {
  const body = record(json);
  const models = strings(body["models"]);
  return {
    pushUrls: strings(body["push_urls"]),
    models,
    defaultModel: typeof body["default_model"] === "string" ? body["default_model"] : (models[0] ?? null),
    takes: Object.fromEntries(Object.entries(record(body["takes"])).map(([model, takes]) => [model, readTakes(takes)])),
    version: typeof body["version"] === "string" ? body["version"] : "",
    conversations: body["conversations"] === true,
    titles: body["titles"] === true,
    shares: body["shares"] === true,
    searches: body["searches"] === true,
  };
}

export function retryAfter(headers: Headers): number | null {
  const ms = Number(headers.get("retry-after-ms") ?? NaN);
  if (Number.isFinite(ms)) return ms;
  const s = Number(headers.get("retry-after") ?? NaN);
  return Number.isFinite(s) ? s * 1000 : null;
}

function readTakes(value: unknown): Takes {
  const takes = record(value);
  const longest = takes["max_output_tokens"];
  return {
    images: takes["images"] === true ? true : takes["images"] === null ? null : false,
    files: takes["files"] === true,
    maxOutputTokens: typeof longest === "number" ? longest : null,
  };
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

function stringField(body: Record<string, unknown>, field: string): string {
  const value = body[field];
  if (typeof value !== "string") throw new ApiError(502, { code: "bad_answer", message: texts().fieldMissing(field) }, null);
  return value;
}
