"""Reads conversations from the archive and the log, and changes them.

The state of a conversation is its rows in the archive plus the later records of the owner's
partition. So the archive may lag. While the archive is down, recently read conversations continue
from their cached state.
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

# With at most this many records after the cached state, the log is read instead of the archive.
NEAR: Final = 500
CACHE_SIZE: Final = 256  # conversations; a long one takes a megabyte
# Maximum lag of the archive, in records. More takes longer to read than a client waits.
MAX_BEHIND: Final = 20_000
RETRY_AFTER_S: Final = 2.0
RANDOM_BYTES: Final = 12

Conversation = conversations.Conversation


class Conversations:
    """Reads and changes conversations for their owner.

    Attributes:
        _cache: states, and the offset after their last record, by id; the last used one last.
    """

    def __init__(
        self,
        incarnation: bytes,
        archive: archived.ArchiveQueries,
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
        self._cache: collections.OrderedDict[str, tuple[Conversation, int]] = (
            collections.OrderedDict()
        )

    async def create(
        self,
        owner: records.Owner,
        metadata: dict[str, str],
        title: str,
        items: Sequence[dict[str, Any]],
    ) -> Conversation:
        """Create a conversation with `items`, in the form of the API. Raises like `find`, and
        log.AppendFailed."""
        self._archive.require("conversations")
        name = self._mint(owner, conversations.PREFIX)
        created_at = int(self._clock())
        below = await self.append(conversations.Created(name, owner, created_at, metadata, title))
        conversation = Conversation(
            name, owner, created_at, created_at * 1000, metadata=metadata, title=title
        )
        if below > 0:
            self._remember(conversation, below)
        if items:
            await self.add_items(conversation, items)
        return conversation

    async def create_once(
        self, owner: records.Owner, key: str, metadata: dict[str, str], title: str
    ) -> Conversation:
        """The owner's conversation of this idempotency key, created now if there is none. Raises
        like `find`, 404 if it was deleted; and log.AppendFailed, after which it may exist."""
        self._archive.require("conversations")
        name = self._derive_id(owner, key)
        conversation = await self._state(name, owner)
        if conversation.owner is not None or owner.key in conversation.gone:
            return _require_owner(conversation, owner)
        attempt = secrets.token_urlsafe(RANDOM_BYTES)
        act = conversations.Created(name, owner, int(self._clock()), metadata, title, attempt)
        # Another gateway may have been first.
        return await self.find(name, owner, end=await self.append(act))

    async def find(
        self, name: str, owner: records.Owner, *, contents: bool = False, end: int = -1
    ) -> Conversation:
        """The owner's conversation with all acknowledged changes.

        Args:
            contents: with the contents of its added items.
            end: read its partition up to this offset; -1: up to the end of the log.

        Raises:
            errors.ApiError: 404, the owner has no such conversation; 503, the archive is needed and
                does not answer.
            log.LogUnavailable
        """
        return _require_owner(await self._state(name, owner, contents=contents, end=end), owner)

    async def _state(
        self, name: str, owner: records.Owner, *, contents: bool = False, end: int = -1
    ) -> Conversation:
        """The state of a conversation that may not exist. Arguments and errors like `find`."""
        partition = self._partition(name, owner)
        if end < 0:
            end = (await self._offsets.ends(topics.CONVERSATIONS, [partition]))[partition]
        conversation, start = await self._read(name, partition, end, contents=contents)
        try:
            await self._fold(conversation, partition, start, end)
        except log.HistoryLost as error:
            raise log.LogUnavailable("the topic of conversations was cut") from error
        if conversation.owner == owner:
            self._remember(conversation, max(start, end))
        return conversation

    async def list_page(
        self, owner: records.Owner, after: str | None, limit: int
    ) -> list[Conversation]:
        """The owner's conversations (`archived.ArchiveQueries.conversations`)."""
        return await self._archive.conversations(owner, after, limit)

    async def append(self, *acts: conversations.Act) -> int:
        """Append acts of one owner, in order. Returns the offset after the last one; -1: unknown.
        Raises log.AppendFailed."""
        end = -1
        for act in acts:
            position = await self._writer.append(
                topics.CONVERSATIONS,
                conversations.partition(act.by),
                conversations.key(act, secrets.token_urlsafe(RANDOM_BYTES)),
                conversations.encode(act),
                telemetry.trace_headers(),
            )
            end = position.offset + 1 or -1
        return end

    async def add(
        self, conversation: Conversation, act: conversations.Turn | conversations.Added
    ) -> bool:
        """Append a node. Returns whether it was accepted. Raises like `find`, and
        log.AppendFailed."""
        end = await self.append(act)
        current = await self.find(conversation.id, act.by, end=end)
        return act.node in current.nodes

    async def add_items(
        self, conversation: Conversation, items: Sequence[dict[str, Any]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Add items after the head, all of them or none. Returns them with their ids. After a
        concurrent change they follow the new head.

        Raises:
            errors.ApiError: 400, it has the maximum of nodes; and like `find`.
            log.AppendFailed: whether they were added is unknown.
        """
        assert conversation.owner is not None
        owner = conversation.owner
        scope = self._mint(owner, "")
        entries = [(item_id(scope, n, item), item) for n, item in enumerate(items)]
        await asyncio.gather(
            *(
                self.append(conversations.Item(conversation.id, owner, i, item))
                for i, item in entries
            )
        )
        while True:
            check_room(conversation)
            # A refused node's key stays used, so each attempt needs a new node.
            node = self._mint(owner, conversations.NODE_PREFIX)
            names = [i for i, _ in entries]
            act = conversations.Added(conversation.id, owner, node, names, conversation.head)
            if await self.add(conversation, act):
                return entries
            conversation = await self.find(conversation.id, owner)

    async def delete(self, name: str, owner: records.Owner) -> Conversation:
        """Delete a conversation. Its responses stay. Returns its last state. Raises like `find`,
        and log.AppendFailed."""
        conversation = await self.find(name, owner)
        end = await self.append(conversations.Gone(name, owner))
        if end > 0:
            last = await self._state(name, owner, end=end - 1)
            conversation = last if last.owner == owner else conversation
        self._cache.pop(name, None)
        return conversation

    async def remove_item(self, conversation: Conversation, item: str) -> None:
        """Remove an item. The content of an added item is erased. Raises log.AppendFailed."""
        assert conversation.owner is not None
        await self.append(conversations.Removed(conversation.id, conversation.owner, item))
        if any(item in node.items for node in conversation.nodes.values()):
            await self._writer.append(
                topics.CONVERSATIONS,
                conversations.partition(conversation.owner),
                conversations.key(
                    conversations.Item(conversation.id, conversation.owner, item, {})
                ),
                None,
            )

    def _mint(self, owner: records.Owner, prefix: str, entropy: bytes = b"") -> str:
        address = ids.Address(self._incarnation, conversations.partition(owner), 0)
        return ids.mint(address, entropy or os.urandom(ids.RANDOM_BYTES), prefix)

    def _derive_id(self, owner: records.Owner, key: str) -> str:
        """The id of the owner's conversation for this idempotency key. The digest covers an array,
        so that different values cannot give the same text."""
        scope = msgspec.json.encode([owner.issuer, owner.tenant, owner.subject, key])
        digest = hashlib.blake2b(scope, digest_size=ids.RANDOM_BYTES, person=b"conversation")
        return self._mint(owner, conversations.PREFIX, digest.digest())

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
        """A state, and the offset after its last record."""
        entry = self._cache.get(name)
        if entry is not None and contents and not entry[0].complete:
            entry = None
        if entry is not None and end - entry[1] <= NEAR:
            return entry[0].copy(), entry[1]
        try:
            conversation, start = await self._archive.conversation(
                name, partition, contents=contents
            )
        except errors.ApiError:
            if entry is None or end - entry[1] > MAX_BEHIND:
                raise
            return entry[0].copy(), entry[1]
        if start is None:
            begin = await self._offsets.beginnings(topics.CONVERSATIONS, [partition])
            start = begin[partition]
        if end - start > MAX_BEHIND:
            raise errors.unavailable(
                "The archive, which stores conversations, lags behind the log.", RETRY_AFTER_S
            )
        return conversation, start

    async def _fold(self, conversation: Conversation, partition: int, start: int, end: int) -> None:
        if start >= end:
            return
        async with contextlib.aclosing(
            self._ranges.read(topics.CONVERSATIONS, partition, start, end)
        ) as batches:
            async for batch in batches:
                for record in batch:
                    if conversations.id_from_key(record.key) != conversation.id or record.forgery:
                        continue
                    if record.value is None:
                        conversation.erase(record.key)
                        continue
                    act = conversations.decode(record.key, record.value)
                    if act is not None:
                        conversation.apply(act, record.timestamp)

    def _remember(self, conversation: Conversation, below: int) -> None:
        self._cache[conversation.id] = (conversation.copy(), below)
        self._cache.move_to_end(conversation.id)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)


# The prefix of an item's id, by its type, as in OpenAI's API.
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
    """The id of item number `number` of one batch."""
    return f"{_PREFIXES[item['type']]}{scope}_{number}"


def _require_owner(conversation: Conversation, owner: records.Owner) -> Conversation:
    """Raises ApiError: 404, it does not exist, or has another owner."""
    if conversation.owner != owner:
        raise errors.conversation_not_found(conversation.id)
    return conversation


def check_room(conversation: Conversation) -> None:
    """Raises ApiError: the conversation has the maximum of nodes."""
    if len(conversation.nodes) >= conversations.MAX_NODES:
        raise errors.invalid_value(
            "conversation",
            f"This conversation has {conversations.MAX_NODES} turns, and can have no more.",
        )
