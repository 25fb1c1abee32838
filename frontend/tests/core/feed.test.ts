import { expect, it } from "vitest";
import { readFeed } from "../../src/core/feed";

const AT = { position: "p", conversation_id: "conv_1" };

it.each([
  [{ type: "feed.ready", position: "p" }, { kind: "ready" }],
  [{ type: "feed.reset", position: "p" }, { kind: "reset" }],
  [{ type: "feed.position", position: "p" }, { kind: "other" }],
  [{ type: "conversation.created", ...AT, conversation: { title: "A" } }, { kind: "created", conversation: { id: "conv_1", title: "A" } }],
  [{ type: "conversation.updated", ...AT, title: "A" }, { kind: "labelled", name: "A", pinned: null, metadata: null }],
  [{ type: "conversation.updated", ...AT, pinned: false }, { kind: "labelled", name: null, pinned: false }],
  [{ type: "conversation.updated", ...AT, metadata: { a: "b" } }, { kind: "labelled", metadata: { a: "b" } }],
  [{ type: "conversation.updated", ...AT, head: null }, { kind: "chosen", head: null }],
  [{ type: "conversation.updated", ...AT, head: "r" }, { kind: "chosen", head: "r" }],
  [{ type: "conversation.turn", ...AT, response_id: "r", parent: null }, { kind: "turn", response: "r", parent: null }],
  [{ type: "response.ended", ...AT, response_id: "r" }, { kind: "changed", response: "r" }],
  [{ type: "conversation.items_added", ...AT }, { kind: "changed", response: null }],
  [{ type: "conversation.deleted", ...AT }, { kind: "deleted", id: "conv_1" }],
  [{ type: "response.ended", position: "p", response_id: "r", conversation_id: null }, { kind: "other" }],
  [{ type: "something.new", ...AT }, { kind: "other" }],
])("reads %j", (event, expected) => expect(readFeed([event])).toMatchObject([{ position: "p", ...expected }]));

it("leaves out what makes no sense", () => {
  expect(readFeed([null, 3, {}, { type: "feed.ready" }, { type: "conversation.turn", ...AT }])).toEqual([]);
});
