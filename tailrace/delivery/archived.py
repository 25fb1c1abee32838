"""Responses from the archive: those that the log has no longer, and lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.archive import fold, reader
from tailrace.delivery import hub, kept_bytes
from tailrace.log import interfaces
from tailrace.protocol import conversations, errors, files, history, ids, records, topics

RETRY_AFTER_S: Final = 2.0
_PARTITIONS: Final = topics.partitions_of(topics.HISTORY)


def stream_of(found: history.History, kept: kept_bytes.KeptBytes | None = None) -> hub.Stream:
    """The stream of a response that has ended, with the events that it had."""
    partition = ids.parse(found.rid).partition
    stream = hub.Stream(found.rid, partition, kept=kept, archived=True)
    stream.identify(found.owner, found.request.echo)
    for number, record in enumerate(history.to_records(found)):
        stream.apply(record, number, found.ended_ms)
    return stream


def response_of(found: reader.Archived) -> dict[str, Any]:
    """The Response object, with the metadata that its owner gave it last."""
    series = stream_of(found.history).series
    assert series is not None  # the request identifies it
    return {**series.snapshot(), "metadata": found.metadata}


class Kept(NamedTuple):
    """A response: its request and the Response object."""

    request: records.Request
    response: dict[str, Any]


class Archived:
    """Asks the archive, after what was acknowledged is folded where that matters.

    Every question raises ApiError: 503, the archive is away, behind, or there is none.
    """

    def __init__(
        self, read: reader.Reader | None, offsets: interfaces.OffsetQueries, log: str
    ) -> None:
        """`read`: None where the deployment has no archive. `log`: its incarnation."""
        self._reader = read
        self._offsets = offsets
        self._log = log

    @property
    def there(self) -> bool:
        """Whether the deployment has an archive."""
        return self._reader is not None

    def require(self, what: str) -> None:
        """Raise ApiError where the deployment has no archive, which `what` need."""
        if self._reader is None:
            raise _no_archive(what)

    async def find(self, rid: str, owner: records.Owner) -> history.History | None:
        """A response of `owner`. One of another principal costs what an unknown one does. Raises
        also log.LogUnavailable."""
        if self._reader is None:
            return None
        try:
            found = await self._reader.find(rid, owner.key)
            if found is None:
                await self._wait_folded(history.partition(rid, _PARTITIONS))
                found = await self._reader.find(rid, owner.key)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return found.history if found is not None else None

    async def held(self, rid: str, owner: records.Owner) -> history.History | None:
        """A response of `owner` that the archive has now. None where it does not answer."""
        if self._reader is None:
            return None
        with contextlib.suppress(reader.ArchiveUnavailable):
            found = await self._reader.find(rid, owner.key)
            return found.history if found is not None else None
        return None

    async def several(self, rids: Sequence[str], owner: records.Owner) -> dict[str, Kept]:
        """Those of an owner's responses that the archive has now, by id. It may be behind, and not
        know of a deletion yet."""
        if self._reader is None or not rids:
            return {}
        try:
            found = await self._reader.several(rids, owner.key)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return {
            rid: Kept(each.history.request, await _response(each)) for rid, each in found.items()
        }

    async def present(self, rids: Sequence[str], owner: records.Owner) -> set[str]:
        """The ids of those that `several` would answer."""
        if self._reader is None or not rids:
            return set()
        try:
            return await self._reader.present(rids, owner.key)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def metadata(self, rid: str, owner: records.Owner) -> dict[str, str] | None:
        """What the owner changed the metadata of a response to; None if they did not. Raises also
        log.LogUnavailable."""
        if self._reader is None:
            return None
        try:
            await self._wait_folded(history.partition(rid, _PARTITIONS))
            return (await self._reader.metadata([rid], owner.key)).get(rid)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def file(self, scope: str, sha256: str, chunks: int) -> bytes | None:
        """The file of this digest and of so many chunks, which stored requests of those with the
        cache scope name. Raises also log.LogUnavailable."""
        if self._reader is None:
            return None
        keys = [history.file_key(scope, sha256, number) for number in range(chunks)]
        try:
            found = [await self._reader.file(key) for key in keys]
            if None in found:
                await self._wait_folded(files.partition(sha256, _PARTITIONS))
                found = [await self._reader.file(key) for key in keys]
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        there = [chunk for chunk in found if chunk is not None]
        return b"".join(there) if len(there) == chunks else None

    async def listed(self, wanted: reader.Wanted) -> list[list[dict[str, Any]]]:
        """The Response objects of a list (`reader.Reader.listed`), with all that was acknowledged
        before.

        Raises:
            reader.UnknownPlace, log.LogUnavailable
        """
        self.require("lists")
        assert self._reader is not None
        try:
            await self._wait_folded()
            groups = await self._reader.listed(wanted)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return [[await _response(each) for each in group] for group in groups]

    async def conversation(
        self, name: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        """A conversation of anybody as the archive has it (`reader.Reader.conversation`)."""
        self.require("conversations")
        assert self._reader is not None
        try:
            return await self._reader.conversation(name, self._log, partition, contents=contents)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def conversations(
        self, owner: records.Owner, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        """Conversations of an owner (`reader.Reader.conversations`), with all that was acknowledged
        before.

        Raises:
            reader.UnknownPlace, log.LogUnavailable
        """
        self.require("conversations")
        assert self._reader is not None
        try:
            await self._wait_conversations(owner)
            return await self._reader.conversations(owner.key, after, limit)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def search(
        self, owner: records.Owner, asked: str, after: str | None, limit: int
    ) -> list[reader.Match]:
        """Conversations of an owner that have these words (`reader.Reader.search`), with all that
        was acknowledged before.

        Raises:
            reader.UnknownPlace, log.LogUnavailable
        """
        self.require("conversations")
        assert self._reader is not None
        try:
            await self._wait_conversations(owner)
            await self._wait_folded()
            return await self._reader.search(owner.key, asked, after, limit)
        except reader.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def _wait_conversations(self, owner: records.Owner) -> None:
        """Until the archive has all acts on an owner's conversations that were acknowledged."""
        assert self._reader is not None
        ends = await self._offsets.ends(topics.CONVERSATIONS, [conversations.partition(owner)])
        await self._reader.wait_folded(self._log, topics.CONVERSATIONS, ends)

    async def stop(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            await self._reader.stop()

    async def _wait_folded(self, *partitions: int) -> None:
        """Wait until the archive has what the topics hold now; with partitions, only those of
        `llm.history`."""
        assert self._reader is not None
        followed: Sequence[str] = (topics.HISTORY,) if partitions else fold.RESPONSES
        for topic in followed:
            all_of_them = partitions or range(topics.partitions_of(topic))
            ends = await self._offsets.ends(topic, all_of_them)
            await self._reader.wait_folded(self._log, topic, ends)


async def _response(found: reader.Archived) -> dict[str, Any]:
    await asyncio.sleep(0)  # others have their turn in between
    return response_of(found)


def _no_archive(what: str) -> errors.ApiError:
    return errors.unavailable(f"This deployment has no archive, which {what} need.")


def _unavailable(error: reader.ArchiveUnavailable) -> errors.ApiError:
    return errors.unavailable(
        f"The archive, which has what the log has no longer, does not answer: {error}. "
        "What the log still holds is served.",
        RETRY_AFTER_S,
    )
