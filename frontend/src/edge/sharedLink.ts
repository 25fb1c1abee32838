/* Reads the chat of a shared link, without a session: it sends no cookie and stores nothing. */

import { mergeMessages, readShared, type SharedMessage, type SharedPage } from "../core/sharedChat";
import { texts } from "../core/words";
import { delayWords } from "../core/messages";

export type LinkContent =
  | { kind: "chat"; title: string; sharedAt: number; endsAt: number; messages: readonly SharedMessage[] }
  /** The link does not exist (any more). */
  | { kind: "gone" }
  /** The chat could not be read now. */
  | { kind: "away"; words: string };

export const PATH = "/s/";
const TIMEOUT_MS = 30_000;
const MAX_PAGES = 400; // a conversation has at most 10,000 nodes, a page usually 50

/** The token in the address of the page; null: none. */
export function tokenIn(pathname: string): string | null {
  const token = pathname.startsWith(PATH) ? pathname.slice(PATH.length) : "";
  return /^[\w-]+$/.test(token) ? token : null;
}

export async function readLink(token: string): Promise<LinkContent> {
  const messages: SharedMessage[] = [];
  let first: SharedPage | null = null;
  let at: number | null = 0;
  for (let count = 0; at !== null && count < MAX_PAGES; count += 1) {
    const page: SharedPage | LinkContent = await readPage(token, at);
    if ("kind" in page) return page;
    first ??= page;
    messages.push(...page.messages);
    at = page.next !== null && page.next > at ? page.next : null;
  }
  if (first === null) return { kind: "gone" };
  const { title, sharedAt, endsAt } = first;
  return { kind: "chat", title, sharedAt, endsAt, messages: mergeMessages(messages) };
}

async function readPage(token: string, after: number): Promise<SharedPage | LinkContent> {
  try {
    const answer = await fetch(`/v1/shared/${token}${after === 0 ? "" : `?after=${after}`}`, {
      signal: AbortSignal.timeout(TIMEOUT_MS),
      cache: "no-store",
      credentials: "omit",
      referrerPolicy: "no-referrer",
    });
    if (answer.status === 404) return { kind: "gone" };
    const page = answer.ok ? readShared(await answer.json().catch(() => null)) : null;
    return page ?? { kind: "away", words: failureWords(answer) };
  } catch {
    return { kind: "away", words: texts().unreachable };
  }
}

function failureWords({ status, headers }: Response): string {
  if (status !== 429 && status !== 503) return texts().serverAnswered(status);
  const seconds = Number(headers.get("retry-after") ?? NaN);
  return texts().busy(delayWords(Number.isFinite(seconds) ? seconds * 1000 : null));
}
