/* What the feed tells: that conversations of the reader came, changed and went, here or on another device. */

import type { Fields } from "./fields";
export type FeedEvent = { readonly position: string } & (
  | { readonly kind: "ready" | "reset" | "other" }
  | { readonly kind: "created"; readonly conversation: Fields }
  | { readonly kind: "labelled"; readonly id: string; readonly name: string | null; readonly pinned: boolean | null; readonly metadata: Fields | null }
  | { readonly kind: "chosen"; readonly id: string; readonly head: string | null }
  | { readonly kind: "turn"; readonly id: string; readonly response: string; readonly parent: string | null }
  /** A response of it began or ended, or its items changed. */
  | { readonly kind: "changed"; readonly id: string; readonly response: string | null }
  | { readonly kind: "deleted"; readonly id: string }
);

/** Events that make no sense are left out. */
export function readFeed(values: readonly unknown[]): FeedEvent[] {
  return values.flatMap((value) => {
    const read = readOne(value);
    return read === null ? [] : [read];
  });
}

function readOne(value: unknown): FeedEvent | null {
  if (typeof value !== "object" || value === null) return null;
  const event = value as Fields;
  const [position, id] = [event["position"], event["conversation_id"]];
  if (typeof position !== "string") return null;
  const said = { position };
  const response = typeof event["response_id"] === "string" ? event["response_id"] : null;
  switch (event["type"]) {
    case "feed.ready":
      return { ...said, kind: "ready" };
    case "feed.reset":
      return { ...said, kind: "reset" };
  }
  if (typeof id !== "string") return { ...said, kind: "other" };
  switch (event["type"]) {
    case "conversation.created":
      return { ...said, kind: "created", conversation: { id, ...(event["conversation"] as Fields | undefined) } };
    case "conversation.updated":
      return readUpdated(said, id, event);
    case "conversation.turn":
      return response === null ? null : { ...said, kind: "turn", id, response, parent: typeof event["parent"] === "string" ? event["parent"] : null };
    case "response.started":
    case "response.ended":
    case "conversation.items_added":
    case "conversation.item_removed":
      return { ...said, kind: "changed", id, response };
    case "conversation.deleted":
      return { ...said, kind: "deleted", id };
    default:
      return { ...said, kind: "other" };
  }
}

function readUpdated(said: { position: string }, id: string, event: Fields): FeedEvent {
  if ("head" in event) return { ...said, kind: "chosen", id, head: typeof event["head"] === "string" ? event["head"] : null };
  const [name, pinned, metadata] = [event["title"], event["pinned"], event["metadata"]];
  return {
    ...said,
    kind: "labelled",
    id,
    name: typeof name === "string" ? name : null,
    pinned: typeof pinned === "boolean" ? pinned : null,
    metadata: typeof metadata === "object" && metadata !== null ? (metadata as Fields) : null,
  };
}
