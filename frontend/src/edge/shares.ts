/* Creates, lists and revokes links that show a conversation to others. */

import { texts } from "../core/words";
import { ApiError } from "./api";

/** Sends a request with the reader's session. Rejects with an ApiError. */
export interface Requests {
  request(method: string, path: string, body: object | null): Promise<Record<string, unknown>>;
}

export interface Share {
  readonly id: string;
  /** The address for others. */
  readonly url: string;
  /** Both in ms. */
  readonly sharedAt: number;
  readonly endsAt: number;
}

export class Shares {
  /** `origin`: the origin of the gateway's page. */
  constructor(
    private readonly api: Requests,
    private readonly origin: string,
  ) {}

  /** Creates a link to the current state of the conversation. `expiresIn` in seconds; null: the
      server's default. */
  async share(conversationId: string, expiresIn: number | null = null): Promise<Share> {
    const share = this.parse(await this.api.request("POST", `${path(conversationId)}/share`, expiresIn === null ? {} : { expires_in: expiresIn }));
    if (share === null) throw new ApiError(502, { code: "bad_answer", message: texts().fieldMissing("url_path") }, null);
    return share;
  }

  /** The links of a conversation, the newest first. */
  async shares(conversationId: string): Promise<Share[]> {
    const { data } = await this.api.request("GET", `${path(conversationId)}/shares`, null);
    return (Array.isArray(data) ? data : []).flatMap((row) => this.parse(row as Record<string, unknown>) ?? []);
  }

  /** Revokes a link. A link that does not exist counts as revoked. */
  async unshare(conversationId: string, shareId: string): Promise<void> {
    try {
      await this.api.request("DELETE", `${path(conversationId)}/shares/${encodeURIComponent(shareId)}`, null);
    } catch (error) {
      if (!(error instanceof ApiError && error.fault.code === "share_not_found")) throw error;
    }
  }

  private parse(row: Record<string, unknown>): Share | null {
    const { id, url_path: urlPath, created_at: createdAt, expires_at: expiresAt } = row;
    if (typeof id !== "string" || typeof urlPath !== "string" || typeof createdAt !== "number" || typeof expiresAt !== "number") return null;
    return { id, url: this.origin + urlPath, sharedAt: createdAt * 1000, endsAt: expiresAt * 1000 };
  }
}

function path(conversationId: string): string {
  return `/v1/conversations/${encodeURIComponent(conversationId)}`;
}
