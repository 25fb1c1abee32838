"""The next turn of a conversation: its predecessor and its place in the tree."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.conversations import conversations
from gateway.conversations import items as conversation_items
from gateway.conversations.conversations import Conversations
from gateway.parsing import command, conversations_api
from gateway.responses import busy, context
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, fold, ids, records

PARAM: Final = busy.CONVERSATION


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a turn in its conversation.

    Attributes:
        branch: its parent need not be the head.
    """

    conversation: tree.Conversation
    parent: str | None
    branch: bool = False


class Turns:
    """Finds, acquires and releases the places of turns."""

    def __init__(
        self,
        conversations: Conversations,
        items: conversation_items.Items,
        deliver: delivery.Delivery,
        resolver: context.Resolver,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._conversations = conversations
        self._items = items
        self._delivery = deliver
        self._resolver = resolver
        self._clock = clock

    async def after(
        self, name: str, owner: records.Owner, parent: command.Parent | None = None
    ) -> tuple[Place, context.History]:
        """The place after a node of a conversation, and the messages that lead to it.

        Args:
            parent: the node; None: the head.

        Raises:
            Busy: the node's response is running, or its request is being written.
            errors.ApiError: 404, there is no such conversation; 400, it has no such node, or has
                too many nodes; 503, the archive is needed and does not answer.
            log.LogUnavailable
        """
        conversation = await self._conversations.find(name, owner)
        if conversation.removed or any(not at.turn for at in conversation.nodes.values()):
            conversation = await self._conversations.find(name, owner, contents=True)
        conversations.check_room(conversation)
        if parent is None:
            return Place(conversation, conversation.head), await self._history(
                conversation, conversation.head, owner
            )
        if parent.node is not None and parent.node not in conversation.nodes:
            raise errors.invalid_value(
                conversations_api.PARENT,
                f"Invalid '{conversations_api.PARENT}': the conversation has no such node.",
            )
        history = await self._history(conversation, parent.node, owner)
        return Place(conversation, parent.node, branch=True), history

    async def sibling(self, name: str, rid: str, owner: records.Owner) -> Place:
        """The place next to the turn `rid`, with the same parent. Raises like `after`, and
        ApiError: 400, the conversation has no such turn."""
        conversation = await self._conversations.find(name, owner)
        conversations.check_room(conversation)
        if rid not in conversation.nodes:
            raise errors.invalid_value(
                PARAM, f"The response '{rid}' is not a turn of this conversation."
            )
        return Place(conversation, conversation.nodes[rid].parent, branch=True)

    async def acquire(self, place: Place, rid: str, until: int) -> None:
        """Acquire the place for the response `rid`. Its request is in the log by `until` (broker's
        time in ms) or never.

        Raises:
            Busy: another turn has the place.
            errors.ApiError, log.LogUnavailable: like `after`.
            log.AppendFailed: whether it was acquired is unknown.
        """
        conversation = place.conversation
        assert conversation.owner is not None
        act = tree.Turn(conversation.id, conversation.owner, rid, place.parent, place.branch, until)
        if not await self._conversations.add(conversation, act):
            current = await self._conversations.find(conversation.id, conversation.owner)
            raise busy.Busy(current.head or rid, PARAM)

    async def release(self, place: Place, rid: str, instead: str | None = None) -> None:
        """Release the place of the response `rid`: its request is not in the log and never will be,
        or it was withdrawn because `instead` is the turn. Raises log.AppendFailed."""
        conversation = place.conversation
        assert conversation.owner is not None
        head = instead or conversation.head
        await self._conversations.append(
            tree.Chosen(conversation.id, conversation.owner, head, was=rid, only=True)
        )

    async def _history(
        self, conversation: tree.Conversation, node: str | None, owner: records.Owner
    ) -> context.History:
        """The messages of the path to a node."""
        path = conversation.path_to(node)
        tail: list[str] = []  # nodes after the last turn that can be continued
        anchor: str | None = None
        before: context.Messages | None = None
        while path and anchor is None:
            node = path.pop()
            if not conversation.nodes[node].turn:
                tail.append(node)
            elif (before := await self._resolver.cached_turn(node, owner)) is not None or (
                await self._continuable(node, conversation.nodes[node], owner)
            ):
                anchor = node
        tail.reverse()
        if anchor is None:
            return context.History(await self._items.messages(conversation, tail, owner))
        partition = ids.parse(anchor).partition
        if not conversation.removed:
            if before is None:
                before = (await self._resolver.resolve(anchor, owner)).messages
            messages = await self._items.messages(conversation, tail, owner) if tail else []
            return context.History([*before, *messages], partition)
        whole = [*path[-2 * context.MAX_TURNS :], anchor, *tail]
        return context.History(await self._items.messages(conversation, whole, owner), partition)

    async def _continuable(self, rid: str, at: tree.Node, owner: records.Owner) -> bool:
        """Whether a turn has ended so that another may follow. Raises Busy."""
        try:
            conversation = await self._delivery.find(rid, owner)
        except delivery.NotFound:
            if self._clock() * 1000 < at.until:
                raise busy.Busy(rid, PARAM) from None
            return False
        except log.HistoryLost:
            return False
        if conversation.phase is not fold.Phase.DONE:
            raise busy.Busy(rid, PARAM)
        return context.continuable(conversation.response) and not conversation.withdrawn
