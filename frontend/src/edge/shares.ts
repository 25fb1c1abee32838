/* Links that show a conversation to others, as its owner makes and revokes them. */

import { texts } from "../core/words";
import { ApiError } from "./api";

/** Asks the gateway in the reader's session. Rejects with an ApiError. */
export interface Requests {
  request(method: string, path: string, body: object | null): Promise<Record<string, unknown>>;
}

export interface Share {
  readonly id: string;
  /** What is given to others. */
  readonly url: string;
  /** Both in ms. */
  readonly sharedAt: number;
  readonly endsAt: number;
}

export class Shares {
  /** `origin`: of the gateway's page. */
  constructor(
    private readonly api: Requests,
    private readonly origin: string,
  ) {}

  /** A link to the conversation as the server has it now. `expiresIn` in seconds; null: as the server thinks best. */
  async share(conversationId: string, expiresIn: number | null = null): Promise<Share> {
    const made = this.read(await this.api.request("POST", `${path(conversationId)}/share`, expiresIn === null ? {} : { expires_in: expiresIn }));
    if (made === null) throw new ApiError(502, { code: "bad_answer", message: texts().fieldMissing("url_path") }, null);
    return made;
  }

  /** Those that show it, the newest first. */
  async shares(conversationId: string): Promise<Share[]> {
    const { data } = await this.api.request("GET", `${path(conversationId)}/shares`, null);
    return (Array.isArray(data) ? data : []).flatMap((row) => this.read(row as Record<string, unknown>) ?? []);
  }

  /** The link shows nothing any more. One that is not there is as good as revoked. */
  async unshare(conversationId: string, shareId: string): Promise<void> {
    try {
      await this.api.request("DELETE", `${path(conversationId)}/shares/${encodeURIComponent(shareId)}`, null);
    } catch (error) {
      if (!(error instanceof ApiError && error.fault.code === "share_not_found")) throw error;
    }
  }

  private read(row: Record<string, unknown>): Share | null {
    const { id, url_path: place, created_at: made, expires_at: ends } = row;
    if (typeof id !== "string" || typeof place !== "string" || typeof made !== "number" || typeof ends !== "number") return null;
    return { id, url: this.origin + place, sharedAt: made * 1000, endsAt: ends * 1000 };
  }
}

function path(conversationId: string): string {
  return `/v1/conversations/${encodeURIComponent(conversationId)}`;
}
