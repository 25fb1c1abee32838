"""Deletes a conversation together with the responses that are its turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.conversations.conversations import Conversations
from gateway.responses import response_operations
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, records

AT_ONCE: Final = 16  # deletions of one call
ROWS_AT_ONCE: Final = 500  # ids of one query to the archive
POLL_S: Final = 0.1  # for a request that is not in the log yet


class ConversationErasure:
    """Erases the responses of a conversation."""

    def __init__(
        self,
        conversations: Conversations,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._conversations = conversations
        self._delivery = deliver
        self._operations = operations
        self._clock = clock

    async def erase(self, name: str, owner: records.Owner) -> None:
        """Delete the responses, also running ones, then the conversation. So a second call
        completes one that was interrupted.

        Raises:
            errors.ApiError: 404, there is no such conversation; 503, the archive is needed and does
                not answer.
            log.LogUnavailable: some of them may be deleted.
        """
        done = set[str]()
        while remaining := _turns(await self._conversations.find(name, owner), done):
            await self._delete(remaining, owner)
            done |= remaining.keys()  # new turns may have been added meanwhile
        last = await self._conversations.delete(name, owner)
        await self._delete(_turns(last, done), owner)

    async def _delete(self, turns: dict[str, tree.Node], owner: records.Owner) -> None:
        rids = [rid for rid in turns if not self._delivery.known_deleted(rid, owner)]
        for at in range(0, len(rids), ROWS_AT_ONCE):
            some = rids[at : at + ROWS_AT_ONCE]
            ended = await self._ended(some, owner)
            for first in range(0, len(some), AT_ONCE):
                outcomes = await asyncio.gather(
                    *(
                        self._operations.append_deletion(rid, owner)
                        if rid in ended
                        else self._look_up_and_delete(rid, turns[rid].until, owner)
                        for rid in some[first : first + AT_ONCE]
                    ),
                    return_exceptions=True,
                )
                for outcome in outcomes:
                    if outcome is not None:
                        raise outcome

    async def _ended(self, rids: Sequence[str], owner: records.Owner) -> set[str]:
        """The responses in the archive, which need no look-up. Empty if the archive does not
        answer."""
        try:
            return await self._delivery.archived.present(rids, owner)
        except errors.ApiError:
            return set()

    async def _look_up_and_delete(self, rid: str, until: int, owner: records.Owner) -> None:
        """Delete a response whose request is in the log by `until` (broker's time in ms) or
        never."""
        while True:
            try:
                await self._operations.delete(rid, owner)
            except log.HistoryLost:
                return  # the log no longer has it
            except delivery.NotFound:
                if self._clock() * 1000 >= until or self._delivery.known_deleted(rid, owner):
                    return
                await asyncio.sleep(POLL_S)
            else:
                return


def _turns(conversation: tree.Conversation, done: set[str]) -> dict[str, tree.Node]:
    return {rid: at for rid, at in conversation.nodes.items() if at.turn and rid not in done}
