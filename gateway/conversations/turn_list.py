"""The nodes of a conversation as a list: each with its input and its response."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.conversations import items as conversation_items
from gateway.responses import response_operations
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import conversations, errors, records

MOST_BYTES: Final = 4 << 20  # of one page; a single turn may be larger
ROWS_AT_ONCE: Final = 25  # of one query to the archive, which returns whole histories
MAX_MISSING: Final = 10_000  # response ids
# Added to the time by which a request reaches the log, for differing clocks.
SURELY_OVER_MS: Final = 60_000

Json = dict[str, Any]
Turn = tuple[list[Json], Json]
"""Input items and the Response object."""

_encode: Final = msgspec.json.Encoder().encode


class ConversationTurns:
    """Reads the contents of nodes: from the archive if it has them, else from the log.

    Attributes:
        _never: turns whose request never reached the log. Finding that out costs a long search.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
        items: conversation_items.Items,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._delivery = deliver
        self._operations = operations
        self._items = items
        self._clock = clock
        self._never: collections.OrderedDict[str, None] = collections.OrderedDict()

    async def rows(
        self, conversation: conversations.Conversation, nodes: Sequence[str]
    ) -> list[msgspec.Raw]:
        """The first of these nodes as JSON: as many as one page holds, at least one. `conversation`
        must have the contents of added items.

        Raises:
            log.LogUnavailable
            errors.ApiError: a response cannot be looked up now.
        """
        rows: list[msgspec.Raw] = []
        size = 0
        for at in range(0, len(nodes), ROWS_AT_ONCE):
            some = nodes[at : at + ROWS_AT_ONCE]
            copies = await self._from_archive(conversation, some)
            for node in some:
                row = _encode(await self._row(conversation, node, copies.get(node)))
                size += len(row)
                if rows and size > MOST_BYTES:
                    return rows
                rows.append(msgspec.Raw(row))
        return rows

    async def _row(
        self,
        conversation: conversations.Conversation,
        name: str,
        copy: delivery.StoredResponse | None,
    ) -> Json:
        node = conversation.nodes[name]
        items, response = [], None
        if not node.turn:
            items = await self._items.of_node(conversation, name)
        elif (turn := await self._turn(conversation, name, copy)) is not None:
            items, response = turn
            items = [item for item in items if item["id"] not in conversation.removed]
            output = [item for item in response["output"] if item["id"] not in conversation.removed]
            response = {**response, "output": output}
        return {
            "id": name,
            "object": "conversation.turn",
            "parent": node.parent,
            "created_at": node.at_ms // 1000,
            "input": items,
            "response": response,
        }

    async def _turn(
        self,
        conversation: conversations.Conversation,
        rid: str,
        copy: delivery.StoredResponse | None,
    ) -> Turn | None:
        """A turn; None if its response was deleted, withdrawn, never written, or lost."""
        assert conversation.owner is not None
        if rid in self._never or self._delivery.known_deleted(rid, conversation.owner):
            return None
        try:
            if copy is None:
                copy = await self._from_log(rid, conversation.owner)
        except delivery.NotFound:
            self._note_missing(rid, conversation.nodes[rid])
            return None
        except log.HistoryLost:
            return None
        if copy is None:
            return None
        try:
            items = await self._operations.items_of(copy.request, conversation.owner)
        except log.HistoryLost:
            items = []  # an image of it is no longer stored
        return items, copy.response

    async def _from_log(self, rid: str, owner: records.Owner) -> delivery.StoredResponse | None:
        snapshot = await self._delivery.find(rid, owner)
        if snapshot.withdrawn:
            return None
        return delivery.StoredResponse(
            await self._delivery.request_of(rid, owner), snapshot.response
        )

    async def _from_archive(
        self, conversation: conversations.Conversation, nodes: Sequence[str]
    ) -> dict[str, delivery.StoredResponse]:
        """The responses in the archive. Empty if it does not answer: the log may have them."""
        assert conversation.owner is not None
        rids = [node for node in nodes if conversation.nodes[node].turn and node not in self._never]
        try:
            return await self._delivery.archived.several(rids, conversation.owner)
        except errors.ApiError:
            return {}

    def _note_missing(self, rid: str, node: conversations.Node) -> None:
        if self._clock() * 1000 < node.until + SURELY_OVER_MS:
            return
        self._never[rid] = None
        if len(self._never) > MAX_MISSING:
            self._never.popitem(last=False)
