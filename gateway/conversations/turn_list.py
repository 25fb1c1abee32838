"""The nodes of a conversation as a list: each with what was asked and the response."""

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

MOST_BYTES: Final = 4 << 20  # of one page; one turn alone may be longer
ROWS_AT_ONCE: Final = 25  # of one question to the archive, which answers with whole histories
NEVER_WRITTEN: Final = 10_000  # response ids
# Behind the time until which a request may come into the log, for clocks that differ.
SURELY_OVER_MS: Final = 60_000

Shown = dict[str, Any]
Turn = tuple[list[Shown], Shown]
"""Input items and the Response object."""

_encode: Final = msgspec.json.Encoder().encode


class ConversationTurns:
    """Reads what is shown of nodes: from the archive where it has them, else from the log.

    Attributes:
        _never: turns whose request never got into the log, which costs a long search to find out.
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
        self, found: conversations.Conversation, nodes: Sequence[str]
    ) -> list[msgspec.Raw]:
        """The first of these nodes as JSON, at least one: as many as one page holds. The contents
        of added items must be there.

        Raises:
            log.LogUnavailable
            errors.ApiError: a response cannot be looked up now.
        """
        rows: list[msgspec.Raw] = []
        size = 0
        for at in range(0, len(nodes), ROWS_AT_ONCE):
            some = nodes[at : at + ROWS_AT_ONCE]
            kept = await self._archived(found, some)
            for node in some:
                row = _encode(await self._row(found, node, kept.get(node)))
                size += len(row)
                if rows and size > MOST_BYTES:
                    return rows
                rows.append(msgspec.Raw(row))
        return rows

    async def _row(
        self, found: conversations.Conversation, name: str, kept: delivery.Kept | None
    ) -> Shown:
        node = found.nodes[name]
        items, response = [], None
        if not node.turn:
            items = await self._items.of_node(found, name)
        elif (turn := await self._turn(found, name, kept)) is not None:
            items, response = turn
            items = [item for item in items if item["id"] not in found.removed]
            output = [item for item in response["output"] if item["id"] not in found.removed]
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
        self, found: conversations.Conversation, rid: str, kept: delivery.Kept | None
    ) -> Turn | None:
        """A turn; None where its response is not there: it was deleted, withdrawn, never written
        or is gone."""
        assert found.owner is not None
        if rid in self._never or self._delivery.known_deleted(rid, found.owner):
            return None
        try:
            if kept is None:
                kept = await self._logged(rid, found.owner)
        except delivery.NotFound:
            self._missed(rid, found.nodes[rid])
            return None
        except log.HistoryLost:
            return None
        if kept is None:
            return None
        try:
            items = await self._operations.items_of(kept.request, found.owner)
        except log.HistoryLost:
            items = []  # an image of it is not kept any more
        return items, kept.response

    async def _logged(self, rid: str, owner: records.Owner) -> delivery.Kept | None:
        found = await self._delivery.find(rid, owner)
        if found.withdrawn:
            return None
        return delivery.Kept(await self._delivery.request_of(rid, owner), found.response)

    async def _archived(
        self, found: conversations.Conversation, nodes: Sequence[str]
    ) -> dict[str, delivery.Kept]:
        """Those that the archive has. Without an answer none: the log may have them."""
        assert found.owner is not None
        rids = [node for node in nodes if found.nodes[node].turn and node not in self._never]
        try:
            return await self._delivery.archived.several(rids, found.owner)
        except errors.ApiError:
            return {}

    def _missed(self, rid: str, node: conversations.Node) -> None:
        if self._clock() * 1000 < node.until + SURELY_OVER_MS:
            return
        self._never[rid] = None
        if len(self._never) > NEVER_WRITTEN:
            self._never.popitem(last=False)
