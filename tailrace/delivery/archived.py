"""Responses from the archive: those that the log has lost, and lists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.archive import archived, fold, reader
from tailrace.delivery import hub, kept_bytes
from tailrace.log import interfaces
from tailrace.protocol import conversations, errors, files, history, ids, records, topics

RETRY_AFTER_S: Final = 2.0
_PARTITIONS: Final = topics.partitions_of(topics.HISTORY)


def build_stream(whole: history.History, memory: kept_bytes.KeptBytes | None = None) -> hub.Stream:
    """The stream of a response that has ended, with the events that it had."""
    partition = ids.parse(whole.rid).partition
    stream = hub.Stream(whole.rid, partition, kept=memory, archived=True)
    stream.identify(whole.owner, whole.request.echo)
    for number, record in enumerate(history.to_records(whole)):
        stream.apply(record, number, whole.ended_ms)
    return stream


def build_response(row: archived.ArchivedResponse) -> dict[str, Any]:
    """The Response object, with the metadata that its owner gave it last."""
    series = build_stream(row.history).series
    assert series is not None  # the request identifies it
    return {**series.snapshot(), "metadata": row.metadata}


class StoredResponse(NamedTuple):
    """A response: its request and the Response object."""

    request: records.Request
    response: dict[str, Any]


class ArchiveQueries:
    """Queries the archive. Where it matters, waits until it has folded all acknowledged records.

    Every query raises ApiError: 503, the archive is away or lags, or there is none.
    """

    def __init__(
        self, read: reader.Reader | None, offsets: interfaces.OffsetQueries, log: str
    ) -> None:
        """`read`: None if the deployment has no archive. `log`: its incarnation."""
        self._reader = read
        self._offsets = offsets
        self._log = log

    def require(self, feature: str) -> None:
        """Raise ApiError where the deployment has no archive, which `what` need."""
        if self._reader is None:
            raise _no_archive(feature)

    async def find(self, rid: str, owner: records.Owner) -> history.History | None:
        """A response of `owner`. One of another principal costs as much as an unknown one. Also
        raises log.LogUnavailable."""
        if self._reader is None:
            return None
        try:
            row = await self._reader.find(rid, owner.key)
            if row is None:
                await self._wait_until_folded(history.partition(rid, _PARTITIONS))
                row = await self._reader.find(rid, owner.key)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return row.history if row is not None else None

    async def find_if_available(self, rid: str, owner: records.Owner) -> history.History | None:
        """A response of `owner` that the archive has now. None if it does not answer."""
        if self._reader is None:
            return None
        with contextlib.suppress(archived.ArchiveUnavailable):
            row = await self._reader.find(rid, owner.key)
            return row.history if row is not None else None
        return None

    async def several(self, rids: Sequence[str], owner: records.Owner) -> dict[str, StoredResponse]:
        """Those of an owner's responses that the archive has now, by id. It may lag, and not know a
        deletion yet."""
        if self._reader is None or not rids:
            return {}
        try:
            rows = await self._reader.several(rids, owner.key)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return {
            rid: StoredResponse(each.history.request, await _response(each))
            for rid, each in rows.items()
        }

    async def present(self, rids: Sequence[str], owner: records.Owner) -> set[str]:
        """The ids of the responses that `several` would return."""
        if self._reader is None or not rids:
            return set()
        try:
            return await self._reader.present(rids, owner.key)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def metadata(self, rid: str, owner: records.Owner) -> dict[str, str] | None:
        """What the owner changed the metadata of a response to; None if they did not. Raises also
        log.LogUnavailable."""
        if self._reader is None:
            return None
        try:
            await self._wait_until_folded(history.partition(rid, _PARTITIONS))
            return (await self._reader.metadata([rid], owner.key)).get(rid)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def file(self, scope: str, sha256: str, chunks: int) -> bytes | None:
        """The file with this digest and this number of chunks, which stored requests within the
        cache scope name. Also raises log.LogUnavailable."""
        if self._reader is None:
            return None
        keys = [history.file_key(scope, sha256, number) for number in range(chunks)]
        try:
            pieces = [await self._reader.file(key) for key in keys]
            if None in pieces:
                await self._wait_until_folded(files.partition(sha256, _PARTITIONS))
                pieces = [await self._reader.file(key) for key in keys]
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        present = [chunk for chunk in pieces if chunk is not None]
        return b"".join(present) if len(present) == chunks else None

    async def list_responses(self, query: archived.ListQuery) -> list[list[dict[str, Any]]]:
        """The Response objects of a list (`reader.Reader.listed`), with everything that was
        acknowledged before.

        Raises:
            archived.UnknownPlace, log.LogUnavailable
        """
        self.require("lists")
        assert self._reader is not None
        try:
            await self._wait_until_folded()
            groups = await self._reader.list_responses(query)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error
        return [[await _response(each) for each in group] for group in groups]

    async def conversation(
        self, name: str, partition: int, *, contents: bool = False
    ) -> tuple[conversations.Conversation, int | None]:
        """A conversation of any owner as the archive has it (`reader.Reader.conversation`)."""
        self.require("conversations")
        assert self._reader is not None
        try:
            return await self._reader.conversation(name, self._log, partition, contents=contents)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def conversations(
        self, owner: records.Owner, after: str | None, limit: int
    ) -> list[conversations.Conversation]:
        """Conversations of an owner (`reader.Reader.conversations`), with all that was acknowledged
        before.

        Raises:
            archived.UnknownPlace, log.LogUnavailable
        """
        self.require("conversations")
        assert self._reader is not None
        try:
            await self._wait_conversations(owner)
            return await self._reader.conversations(owner.key, after, limit)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def search(
        self, owner: records.Owner, words: str, after: str | None, limit: int
    ) -> list[archived.Match]:
        """Conversations of an owner that have these words (`reader.Reader.search`), with all that
        was acknowledged before.

        Raises:
            archived.UnknownPlace, log.LogUnavailable
        """
        self.require("conversations")
        assert self._reader is not None
        try:
            await self._wait_conversations(owner)
            await self._wait_until_folded()
            return await self._reader.search(owner.key, words, after, limit)
        except archived.ArchiveUnavailable as error:
            raise _unavailable(error) from error

    async def _wait_conversations(self, owner: records.Owner) -> None:
        """Until the archive has all acts on an owner's conversations that were acknowledged."""
        assert self._reader is not None
        ends = await self._offsets.ends(topics.CONVERSATIONS, [conversations.partition(owner)])
        await self._reader.wait_until_folded(self._log, topics.CONVERSATIONS, ends)

    async def stop(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            await self._reader.stop()

    async def _wait_until_folded(self, *partitions: int) -> None:
        """Wait until the archive has folded the topics up to their present ends; with partitions,
        only those of `llm.history`."""
        assert self._reader is not None
        names: Sequence[str] = (topics.HISTORY,) if partitions else fold.RESPONSES
        for topic in names:
            numbers = partitions or range(topics.partitions_of(topic))
            ends = await self._offsets.ends(topic, numbers)
            await self._reader.wait_until_folded(self._log, topic, ends)


async def _response(row: archived.ArchivedResponse) -> dict[str, Any]:
    await asyncio.sleep(0)  # others have their turn in between
    return build_response(row)


def _no_archive(feature: str) -> errors.ApiError:
    return errors.unavailable(f"This deployment has no archive, which {feature} need.")


def _unavailable(error: archived.ArchiveUnavailable) -> errors.ApiError:
    return errors.unavailable(
        f"The archive, which has what the log has no longer, does not answer: {error}. "
        "What the log still holds is served.",
        RETRY_AFTER_S,
    )
