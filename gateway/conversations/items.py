"""The items of a conversation: as the API shows them, and as a model gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from gateway.parsing import conversation, input_items
from gateway.responses import context, references, response_operations
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import conversations, fold, records

Json = dict[str, Any]
Conversation = conversations.Conversation


class Items:
    """Looks items up, node by node, along the chosen path."""

    def __init__(
        self,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
        refs: references.References,
    ) -> None:
        self._delivery = deliver
        self._operations = operations
        self._references = refs

    async def along(
        self, conversation: Conversation, *, newest_first: bool, start: str | None = None
    ) -> AsyncIterator[Json]:
        """The items of the chosen path. `start`: the first node; None: the path's beginning, or its
        end for `newest_first`.

        Raises:
            log.LogUnavailable, errors.ApiError: a response cannot be looked up now.
        """
        path = conversation.path()
        if newest_first:
            path.reverse()
        for node in path[path.index(start) if start is not None else 0 :]:
            items = await self.of_node(conversation, node)
            for item in reversed(items) if newest_first else items:
                yield item

    async def of_node(
        self, conversation: Conversation, node: str, *, images_whole: bool = True
    ) -> list[Json]:
        """The items of one node, oldest first, without removed ones. A failed turn has none; a
        running one has its input. Raises like `along`.

        Args:
            images_whole: like in `ResponseOperations.input_items`, for turns.
        """
        at = conversation.nodes[node]
        if at.turn:
            assert conversation.owner is not None
            items = await self._of_turn(node, conversation.owner, images_whole=images_whole)
        else:
            items = [
                {**conversation.contents[i], "id": i}
                for i in at.items
                if i in conversation.contents
            ]
        return [item for item in items if item["id"] not in conversation.removed]

    def node_of(self, conversation: Conversation, item: str) -> str | None:
        """The node of an item, by the item's id; None if the conversation has no such item."""
        return conversation.node_of(item)

    async def messages(
        self, tree: Conversation, nodes: list[str], owner: records.Owner
    ) -> context.Messages:
        """The dialogue of successive nodes, for a model. Raises like `along`."""
        dialogue: list[conversation.Item] = []
        for node in nodes:
            input_json = _as_input(await self.of_node(tree, node))
            dialogue += input_items.read({"input": input_json}, required=False)
        items, _ = await self._references.resolve_items(tuple(dialogue), owner)
        return conversation.messages(items)

    async def _of_turn(self, rid: str, owner: records.Owner, *, images_whole: bool) -> list[Json]:
        try:
            snapshot = await self._delivery.find(rid, owner)
            inputs = await self._operations.input_items(rid, owner, images_whole=images_whole)
        except (delivery.NotFound, log.HistoryLost):
            return []  # deleted, or never in the log
        if snapshot.phase is not fold.Phase.DONE:
            return inputs
        if not context.continuable(snapshot.response):
            return []
        return [*inputs, *snapshot.response["output"]]


# Members of an output item that an input does not accept.
_OUTPUT_ONLY: Final = ("id", "status")
_CALLS: Final = ("function_call", "custom_tool_call")


def _as_input(items: list[Json]) -> list[Json]:
    """Items in the form of an input, without incomplete calls."""
    return [
        {name: value for name, value in item.items() if name not in _OUTPUT_ONLY}
        for item in items
        if item["type"] not in _CALLS or item.get("status", "completed") == "completed"
    ]
