"""Files that requests name, out of `llm.files`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tailrace.log import interfaces
from tailrace.protocol import files, images, log_words, topics


async def read(ranges: interfaces.RangeReader, sha256: str, where: files.Place) -> bytes:
    """A file.

    Raises:
        HistoryLost: it is not there, or is not this file.
        LogUnavailable
    """
    wanted, found = frozenset(where.at), {}
    async with contextlib.aclosing(
        ranges.read(topics.FILES, where.p, *files.span(where))
    ) as batches:
        async for batch in batches:
            found.update({r.offset: r.value or b"" for r in batch if r.offset in wanted})
    try:
        return await asyncio.to_thread(files.joined, sha256, where, found)
    except files.Differs as error:
        raise log_words.HistoryLost(str(error)) from error


# Reads a file, by its digest and its place. Raises like `read`.
Read = Callable[[str, files.Place], Awaitable[bytes]]


async def whole(read_file: Read, messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose image parts have their `data`, those that are kept apart too.

    Raises:
        HistoryLost, LogUnavailable: like `read`.
    """
    messages, found = list(messages), {}
    for part in images.parts(messages):
        if "file" in part and part["sha256"] not in found:
            try:
                where = files.place(part["file"])
            except files.NoPlace as error:
                raise log_words.HistoryLost(str(error)) from error
            data = await read_file(part["sha256"], where)
            found[part["sha256"]] = await asyncio.to_thread(files.encoded, data)
    if not found:
        return messages

    def with_data(part: dict[str, Any]) -> dict[str, Any]:
        if "file" not in part:
            return part
        kept = {name: value for name, value in part.items() if name != "file"}
        return {**kept, "data": found[part["sha256"]]}

    return images.changed(messages, with_data)
