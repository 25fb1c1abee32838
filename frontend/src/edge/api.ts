/* The gateway over HTTP. Every refusal becomes one ApiError, whatever its cause. */

import type { Context } from "../core/conversation";
import { readFault, type Fault } from "../core/protocol";

export interface Config {
  pushUrls: string[];
  models: string[];
  defaultModel: string | null;
  version: string;
}

export interface Engine {
  state: "none" | "loading" | "ready";
  detail: string;
}

export interface Ask {
  model: string | null;
  input: Context["input"];
  previousResponseId: string | null;
  /** Older messages may be left out where all are too many for the model. */
  trimmed: boolean;
  /** The same key for the same question, so that asking twice is answered once. */
  key: string;
  metadata: Record<string, string>;
}

/** `status` 0: the gateway could not be reached, so whether it heard the request is unknown. */
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
  /** What a change needs besides the cookie. */
  headers(): Record<string, string>;
  renew(): Promise<boolean>;
}

/** The code of a request that did not reach the gateway. */
export const UNREACHABLE = "unreachable";
const TIMEOUT_MS = 15_000;

export class Api {
  constructor(
    private readonly base: string,
    private readonly session: SessionHeaders,
  ) {}

  async config(): Promise<Config> {
    const body = await this.call("GET", "/config.json", null, {});
    const models = strings(body["models"]);
    return {
      pushUrls: strings(body["push_urls"]),
      models,
      defaultModel: typeof body["default_model"] === "string" ? body["default_model"] : (models[0] ?? null),
      version: typeof body["version"] === "string" ? body["version"] : "",
    };
  }

  /** null: the gateway does not say. A gateway that is not ready answers 503 with the same body. */
  async engine(): Promise<Engine | null> {
    const answer = await fetch(`${this.base}/ready`, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    const engine = record(record(await answer.json())["engine"]);
    const state = engine["state"];
    if (state !== "none" && state !== "loading" && state !== "ready") return null;
    return { state, detail: typeof engine["detail"] === "string" ? engine["detail"] : "" };
  }

  /** Whether the gateway answers within `ms`, whatever it says. */
  async isReachable(ms: number): Promise<boolean> {
    return fetch(`${this.base}/ready`, { signal: AbortSignal.timeout(ms), cache: "no-store" }).then(
      () => true,
      () => false,
    );
  }

  /** Resolves with the id of the accepted response. */
  async ask(ask: Ask): Promise<string> {
    const body = await this.authorized("/v1/responses", {
      ...(ask.model === null ? {} : { model: ask.model }),
      input: ask.input,
      ...(ask.previousResponseId === null ? {} : { previous_response_id: ask.previousResponseId }),
      ...(ask.trimmed ? { truncation: "auto" } : {}),
      background: true,
      store: true,
      metadata: ask.metadata,
    }, { "Idempotency-Key": ask.key });
    return named(body, "id");
  }

  async cancel(responseId: string): Promise<void> {
    await this.authorized(`/v1/responses/${encodeURIComponent(responseId)}/cancel`, {}, {});
  }

  async ticket(): Promise<string> {
    return named(await this.authorized("/v1/tickets", {}, {}), "ticket");
  }

  // A session may be over, or another tab may have begun a new one: once, it is looked at again before giving up.
  private async authorized(path: string, body: object, headers: Record<string, string>): Promise<Record<string, unknown>> {
    try {
      return await this.call("POST", path, body, { ...headers, ...this.session.headers() });
    } catch (error) {
      const over = error instanceof ApiError && (error.status === 401 || error.fault.code === "session_token_missing");
      if (!over || !(await this.session.renew())) throw error;
      return this.call("POST", path, body, { ...headers, ...this.session.headers() });
    }
  }

  private async call(method: string, path: string, body: object | null, headers: Record<string, string>): Promise<Record<string, unknown>> {
    let answer: Response;
    let parsed: unknown;
    try {
      answer = await fetch(this.base + path, {
        method,
        headers: body === null ? headers : { ...headers, "Content-Type": "application/json" },
        body: body === null ? null : JSON.stringify(body),
        signal: AbortSignal.timeout(TIMEOUT_MS),
        cache: "no-store",
        credentials: "same-origin",
      });
      parsed = await answer.json().catch(() => null);
    } catch {
      throw new ApiError(0, { code: UNREACHABLE, message: "The server cannot be reached." }, null);
    }
    if (answer.ok && parsed !== null) return record(parsed);
    const fault = readFault(record(parsed)["error"]) ?? { code: "http_error", message: `The server answered ${answer.status}.` };
    throw new ApiError(answer.ok ? 502 : answer.status, fault, retryAfter(answer.headers));
  }
}

function retryAfter(headers: Headers): number | null {
  const ms = Number(headers.get("retry-after-ms") ?? NaN);
  if (Number.isFinite(ms)) return ms;
  const s = Number(headers.get("retry-after") ?? NaN);
  return Number.isFinite(s) ? s * 1000 : null;
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

function named(body: Record<string, unknown>, field: string): string {
  const value = body[field];
  if (typeof value !== "string") throw new ApiError(502, { code: "bad_answer", message: `The server's answer has no ${field}.` }, null);
  return value;
}
