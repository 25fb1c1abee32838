"""Conversations as the log says, and what is done to them.

The state of one is rows of the archive at their position and the records of the owner's partition
behind it, so the archive may lag. While it is away, conversations that were read here a moment ago
go on from what was remembered of them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tailrace import log, telemetry
from tailrace.delivery import archived
from tailrace.log import interfaces
from tailrace.protocol import conversations, errors, ids, records, topics

# Records behind what is remembered of a conversation that are read sooner than the archive.
NEAR: Final = 500
REMEMBERED: Final = 256  # conversations; a long one takes a megabyte
# Of the archive's lag, in records. More takes longer to read than a client waits.
MAX_BEHIND: Final = 20_000
RETRY_AFTER_S: Final = 2.0
RANDOM_BYTES: Final = 12

Conversation = conversations.Conversation


class Conversations:
    """Reads and changes conversations for their owner.

    Attributes:
        _remembered: states and the offsets below which they are, by id; the last used one last.
    """

    def __init__(
        self,
        incarnation: bytes,
        archive: archived.Archived,
        offsets: interfaces.OffsetQueries,
        ranges: interfaces.RangeReader,
        writer: interfaces.RecordWriter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`incarnation`: the tag of the log."""
        self._incarnation = incarnation
        self._archive = archive
        self._offsets = offsets
        self._ranges = ranges
        self._writer = writer
        self._clock = clock
        self._remembered: collections.OrderedDict[str, tuple[Conversation, int]] = (
            collections.OrderedDict()
        )

    async def create(
        self,
        owner: records.Owner,
        metadata: dict[str, str],
        title: str,
        items: Sequence[dict[str, Any]],
    ) -> Conversation:
        """A new conversation that holds `items`, in their shown form. Raises like `find`, and
        log.AppendFailed."""
        self._archive.require("conversations")
        name = self._minted(owner, conversations.PREFIX)
        created = int(self._clock())
        below = await self.append(conversations.Created(name, owner, created, metadata, title))
        found = Conversation(name, owner, created, created * 1000, metadata=metadata, title=title)
        if below > 0:
            self._remember(found, below)
        if items:
            await self.add_items(found, items)
        return found

    async def create_once(
        self, owner: records.Owner, key: str, metadata: dict[str, str], title: str
    ) -> Conversation:
        """The conversation that the owner made with this idempotency key, made now if there is
        none. Raises like `find`, 404 where it was deleted; and log.AppendFailed, after which it may
        be there."""
        self._archive.require("conversations")
        name = self._derived(owner, key)
        found = await self._state(name, owner)
        if found.owner is not None or owner.key in found.gone:
            return _owned(found, owner)
        attempt = secrets.token_urlsafe(RANDOM_BYTES)
        made = conversations.Created(name, owner, int(self._clock()), metadata, title, attempt)
        # Another gateway may have been first.
        return await self.find(name, owner, end=await self.append(made))

    async def find(
        self, name: str, owner: records.Owner, *, contents: bool = False, end: int = -1
    ) -> Conversation:
        """The owner's conversation with all that was acknowledged before.

        Args:
            contents: with those of its added items.
            end: what lies below this offset of its partition is enough; -1: all that there is.

        Raises:
            errors.ApiError: 404, there is none of this name that is the owner's; 503, the archive
                is needed and does not answer.
            log.LogUnavailable
        """
        return _owned(await self._state(name, owner, contents=contents, end=end), owner)

    async def _state(
        self, name: str, owner: records.Owner, *, contents: bool = False, end: int = -1
    ) -> Conversation:
        """What the log says of a conversation that may not be there. Arguments and errors of
        `find`."""
        partition = self._partition(name, owner)
        if end < 0:
            end = (await self._offsets.ends(topics.CONVERSATIONS, [partition]))[partition]
        found, start = await self._read(name, partition, end, contents=contents)
        try:
            await self._fold(found, partition, start, end)
        except log.HistoryLost as error:
            raise log.LogUnavailable("the topic of conversations was cut") from error
        if found.owner == owner:
            self._remember(found, max(start, end))
        return found

    async def listed(
        self, owner: records.Owner, after: str | None, limit: int
    ) -> list[Conversation]:
        """The owner's conversations (`archived.Archived.conversations`)."""
        return await self._archive.conversations(owner, after, limit)

    async def append(self, *acts: conversations.Act) -> int:
        """Append acts of one owner, one after the other. Returns the offset behind the last one;
        -1 where nobody knows it. Raises log.AppendFailed."""
        end = -1
        for act in acts:
            appended = await self._writer.append(
                topics.CONVERSATIONS,
                conversations.partition(act.by),
                conversations.key(act, secrets.token_urlsafe(RANDOM_BYTES)),
                conversations.encode(act),
                telemetry.trace_headers(),
            )
            end = appended.offset + 1 or -1
        return end

    async def add(self, found: Conversation, act: conversations.Turn | conversations.Added) -> bool:
        """Append a node. Returns whether it was accepted. Raises like `find`, and
        log.AppendFailed."""
        end = await self.append(act)
        now = await self.find(found.id, act.by, end=end)
        return act.node in now.nodes

    async def add_items(
        self, found: Conversation, items: Sequence[dict[str, Any]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Add items behind the head, all of them or none. Returns them with their ids. Where
        others add at the same time, they come behind what was accepted before.

        Raises:
            errors.ApiError: 400, there is room for no more nodes; and like `find`.
            log.AppendFailed: whether they were added is unknown.
        """
        assert found.owner is not None
        owner = found.owner
        scope = self._minted(owner, "")
        named = [(item_id(scope, n, item), item) for n, item in enumerate(items)]
        await asyncio.gather(
            *(self.append(conversations.Item(found.id, owner, i, item)) for i, item in named)
        )
        while True:
            check_room(found)
            # A refused node has its key for ever, so each attempt is another one.
            node = self._minted(owner, conversations.NODE_PREFIX)
            names = [i for i, _ in named]
            act = conversations.Added(found.id, owner, node, names, found.head)
            if await self.add(found, act):
                return named
            found = await self.find(found.id, owner)

    async def delete(self, name: str, owner: records.Owner) -> Conversation:
        """Delete. Its responses stay. Returns what it was then. Raises like `find`, and
        log.AppendFailed."""
        found = await self.find(name, owner)
        end = await self.append(conversations.Gone(name, owner))
        if end > 0:
            last = await self._state(name, owner, end=end - 1)
            found = last if last.owner == owner else found
        self._remembered.pop(name, None)
        return found

    async def remove_item(self, found: Conversation, item: str) -> None:
        """Leave an item out from now on; of one that was added the content is erased. Raises
        log.AppendFailed."""
        assert found.owner is not None
        await self.append(conversations.Removed(found.id, found.owner, item))
        if any(item in node.items for node in found.nodes.values()):
            await self._writer.append(
                topics.CONVERSATIONS,
                conversations.partition(found.owner),
                conversations.key(conversations.Item(found.id, found.owner, item, {})),
                None,
            )

    def _minted(self, owner: records.Owner, prefix: str, entropy: bytes = b"") -> str:
        address = ids.Address(self._incarnation, conversations.partition(owner), 0)
        return ids.mint(address, entropy or os.urandom(ids.RANDOM_BYTES), prefix)

    def _derived(self, owner: records.Owner, key: str) -> str:
        """The id of the conversation that the owner makes with this idempotency key. The digest is
        of an array, so that no two of them have one text, whatever names contain."""
        scope = msgspec.json.encode([owner.issuer, owner.tenant, owner.subject, key])
        digest = hashlib.blake2b(scope, digest_size=ids.RANDOM_BYTES, person=b"conversation")
        return self._minted(owner, conversations.PREFIX, digest.digest())

    def _partition(self, name: str, owner: records.Owner) -> int:
        try:
            address = ids.parse(name, conversations.PARTITIONS, conversations.PREFIX)
        except ids.InvalidId as error:
            raise errors.conversation_not_found(name) from error
        if address.partition != conversations.partition(owner):
            raise errors.conversation_not_found(name)
        return address.partition

    async def _read(
        self, name: str, partition: int, end: int, *, contents: bool
    ) -> tuple[Conversation, int]:
        """A state, and the offset below which it is."""
        remembered = self._remembered.get(name)
        if remembered is not None and contents and not remembered[0].complete:
            remembered = None
        if remembered is not None and end - remembered[1] <= NEAR:
            return remembered[0].copy(), remembered[1]
        try:
            found, start = await self._archive.conversation(name, partition, contents=contents)
        except errors.ApiError:
            if remembered is None or end - remembered[1] > MAX_BEHIND:
                raise
            return remembered[0].copy(), remembered[1]
        if start is None:
            begin = await self._offsets.beginnings(topics.CONVERSATIONS, [partition])
            start = begin[partition]
        if end - start > MAX_BEHIND:
            raise errors.unavailable(
                "The archive, which knows conversations, is behind the log.", RETRY_AFTER_S
            )
        return found, start

    async def _fold(self, found: Conversation, partition: int, start: int, end: int) -> None:
        if start >= end:
            return
        async with contextlib.aclosing(
            self._ranges.read(topics.CONVERSATIONS, partition, start, end)
        ) as batches:
            async for batch in batches:
                for record in batch:
                    if conversations.named_by(record.key) != found.id or record.forged:
                        continue
                    if record.value is None:
                        found.erase(record.key)
                        continue
                    act = conversations.act_of(record.key, record.value)
                    if act is not None:
                        found.apply(act, record.timestamp)

    def _remember(self, found: Conversation, below: int) -> None:
        self._remembered[found.id] = (found.copy(), below)
        self._remembered.move_to_end(found.id)
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)


# The prefix of an item's id, by its type, as OpenAI's have them.
_PREFIXES: Final = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "reasoning": "rs_",
    "compaction": "cmp_",
}


def item_id(scope: str, number: int, item: dict[str, Any]) -> str:
    """The id of item number `number` of those that were added together."""
    return f"{_PREFIXES[item['type']]}{scope}_{number}"


def _owned(found: Conversation, owner: records.Owner) -> Conversation:
    """Raises ApiError: 404, it is not there, or another's."""
    if found.owner != owner:
        raise errors.conversation_not_found(found.id)
    return found


def check_room(found: Conversation) -> None:
    """Raise ApiError where a conversation can have no more nodes."""
    if len(found.nodes) >= conversations.MAX_NODES:
        raise errors.invalid_value(
            "conversation",
            f"This conversation has {conversations.MAX_NODES} turns, and can have no more.",
        )
