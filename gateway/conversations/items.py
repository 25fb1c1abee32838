"""The items of a conversation: as clients are shown them, and as a model is given them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from gateway.parsing import conversation, input_items
from gateway.responses import context, references, response_operations
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import conversations, fold, records

Shown = dict[str, Any]
Conversation = conversations.Conversation


class Items:
    """Looks items up, node by node along the chosen path."""

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
        self, found: Conversation, *, newest_first: bool, start: str | None = None
    ) -> AsyncIterator[Shown]:
        """The items of the chosen path. `start`: the node to begin with; None: at the path's
        beginning, or its end.

        Raises:
            log.LogUnavailable, errors.ApiError: a response cannot be looked up now.
        """
        path = found.path()
        if newest_first:
            path.reverse()
        for node in path[path.index(start) if start is not None else 0 :]:
            items = await self.of_node(found, node)
            for item in reversed(items) if newest_first else items:
                yield item

    async def of_node(
        self, found: Conversation, node: str, *, images_whole: bool = True
    ) -> list[Shown]:
        """The items of one node, oldest first, without those that were removed. A turn that failed
        has none, one that runs has what it was asked. Raises like `along`.

        Args:
            images_whole: as of `ResponseOperations.input_items`, for turns.
        """
        at = found.nodes[node]
        if at.turn:
            assert found.owner is not None
            items = await self._of_turn(node, found.owner, images_whole=images_whole)
        else:
            items = [{**found.contents[i], "id": i} for i in at.items if i in found.contents]
        return [item for item in items if item["id"] not in found.removed]

    def node_of(self, found: Conversation, item: str) -> str | None:
        """The node that an item is of, by its id; None if it is of none of this conversation."""
        return found.node_of(item)

    async def messages(
        self, found: Conversation, nodes: list[str], owner: records.Owner
    ) -> context.Messages:
        """The dialogue of nodes that follow one another, as a model is given it. Raises like
        `along`."""
        dialogue: list[conversation.Item] = []
        for node in nodes:
            shown = _as_input(await self.of_node(found, node))
            dialogue += input_items.read({"input": shown}, required=False)
        resolved, _ = await self._references.resolve_items(tuple(dialogue), owner)
        return conversation.messages(resolved)

    async def _of_turn(self, rid: str, owner: records.Owner, *, images_whole: bool) -> list[Shown]:
        try:
            found = await self._delivery.find(rid, owner)
            asked = await self._operations.input_items(rid, owner, images_whole=images_whole)
        except (delivery.NotFound, log.HistoryLost):
            return []  # deleted, or never asked
        if found.phase is not fold.Phase.DONE:
            return asked
        if not context.continuable(found.response):
            return []
        return [*asked, *found.response["output"]]


# What a shown item has and an input does not take.
_ONLY_SHOWN: Final = ("id", "status")
_CALLS: Final = ("function_call", "custom_tool_call")


def _as_input(items: list[Shown]) -> list[Shown]:
    """Shown items as an input has them, without calls that were cut short."""
    return [
        {name: value for name, value in item.items() if name not in _ONLY_SHOWN}
        for item in items
        if item["type"] not in _CALLS or item.get("status", "completed") == "completed"
    ]
