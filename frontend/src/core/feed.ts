/* Events of the feed: conversations of the reader were created, changed and deleted, here or on
   another device. */

import type { Fields } from "./fields";
export type FeedEvent = { readonly position: string } & (
  | { readonly kind: "ready" | "reset" | "other" }
  | { readonly kind: "created"; readonly conversation: Fields }
  | { readonly kind: "labelled"; readonly id: string; readonly name: string | null; readonly pinned: boolean | null; readonly metadata: Fields | null }
  | { readonly kind: "chosen"; readonly id: string; readonly head: string | null }
  | { readonly kind: "turn"; readonly id: string; readonly response: string; readonly parent: string | null }
  /** A response of the conversation began or ended, or its items changed. */
  | { readonly kind: "changed"; readonly id: string; readonly response: string | null }
  | { readonly kind: "deleted"; readonly id: string }
);

/** Invalid events are left out. */
export function readFeed(values: readonly unknown[]): FeedEvent[] {
  return values.flatMap((value) => {
    const event = readFeedEvent(value);
    return event === null ? [] : [event];
  });
}

function readFeedEvent(value: unknown): FeedEvent | null {
  if (typeof value !== "object" || value === null) return null;
  const event = value as Fields;
  const [position, id] = [event["position"], event["conversation_id"]];
  if (typeof position !== "string") return null;
  const base = { position };
  const response = typeof event["response_id"] === "string" ? event["response_id"] : null;
  switch (event["type"]) {
    case "feed.ready":
      return { ...base, kind: "ready" };
    case "feed.reset":
      return { ...base, kind: "reset" };
  }
  if (typeof id !== "string") return { ...base, kind: "other" };
  switch (event["type"]) {
    case "conversation.created":
      return { ...base, kind: "created", conversation: { id, ...(event["conversation"] as Fields | undefined) } };
    case "conversation.updated":
      return readUpdate(base, id, event);
    case "conversation.turn":
      return response === null ? null : { ...base, kind: "turn", id, response, parent: typeof event["parent"] === "string" ? event["parent"] : null };
    case "response.started":
    case "response.ended":
    case "conversation.items_added":
    case "conversation.item_removed":
      return { ...base, kind: "changed", id, response };
    case "conversation.deleted":
      return { ...base, kind: "deleted", id };
    default:
      return { ...base, kind: "other" };
  }
}

function readUpdate(base: { position: string }, id: string, event: Fields): FeedEvent {
  if ("head" in event) return { ...base, kind: "chosen", id, head: typeof event["head"] === "string" ? event["head"] : null };
  const [name, pinned, metadata] = [event["title"], event["pinned"], event["metadata"]];
  return {
    ...base,
    kind: "labelled",
    id,
    name: typeof name === "string" ? name : null,
    pinned: typeof pinned === "boolean" ? pinned : null,
    metadata: typeof metadata === "object" && metadata !== null ? (metadata as Fields) : null,
  };
}
