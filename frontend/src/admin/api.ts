/* The view service over HTTP. Every failed request throws an ApiError. */

import { readFault } from "../core/protocol";
import { ApiError, type SessionHeaders } from "../edge/api";
import { BadAnswer, readAnalytics, readPipelines, type Analytics, type Pipeline } from "./answers";

const TIMEOUT_MS = 15_000;

export class AdminApi {
  constructor(private readonly session: SessionHeaders) {}

  pipelines(): Promise<Pipeline[]> {
    return this.get("/v1/pipelines", readPipelines);
  }

  analytics(minutes: number): Promise<Analytics> {
    return this.get(`/v1/analytics?minutes=${minutes}`, readAnalytics);
  }

  // If the session has ended, or another tab has begun a new one, the session is renewed and the
  // request repeated once.
  private async get<T>(path: string, parse: (body: unknown) => T): Promise<T> {
    try {
      return await this.once(path, parse);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 401 && (await this.session.renew()))) throw error;
      return this.once(path, parse);
    }
  }

  private async once<T>(path: string, parse: (body: unknown) => T): Promise<T> {
    let answer: Response;
    let body: unknown;
    try {
      answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", credentials: "same-origin" });
      body = await answer.json().catch(() => null);
    } catch {
      throw new ApiError(0, { code: "unreachable", message: "The service cannot be reached." }, null);
    }
    if (!answer.ok) {
      const errorBody = typeof body === "object" && body !== null ? (body as Record<string, unknown>)["error"] : null;
      throw new ApiError(answer.status, readFault(errorBody) ?? { code: "http_error", message: `The service answered ${answer.status}.` }, null);
    }
    try {
      return parse(body);
    } catch (error) {
      if (!(error instanceof BadAnswer)) throw error;
      throw new ApiError(502, { code: "bad_answer", message: `The service's answer cannot be read: ${error.message}.` }, null);
    }
  }
}
