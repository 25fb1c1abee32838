"""Reads files that requests name from `llm.files`."""

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
        HistoryLost: it is not there, or it is another file.
        LogUnavailable
    """
    offsets, values = frozenset(where.at), {}
    async with contextlib.aclosing(
        ranges.read(topics.FILES, where.p, *files.span(where))
    ) as batches:
        async for batch in batches:
            values.update({r.offset: r.value or b"" for r in batch if r.offset in offsets})
    try:
        return await asyncio.to_thread(files.join, sha256, where, values)
    except files.Differs as error:
        raise log_words.HistoryLost(str(error)) from error


# Reads a file, by its digest and its place. Raises like `read`.
Read = Callable[[str, files.Place], Awaitable[bytes]]


async def with_files(read_file: Read, messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose image parts all have their `data`, also those of files in `llm.files`.

    Raises:
        HistoryLost, LogUnavailable: like `read`.
    """
    messages, contents = list(messages), {}
    for part in images.parts(messages):
        if "file" in part and part["sha256"] not in contents:
            try:
                where = files.parse_place(part["file"])
            except files.NoPlace as error:
                raise log_words.HistoryLost(str(error)) from error
            data = await read_file(part["sha256"], where)
            contents[part["sha256"]] = await asyncio.to_thread(files.encode_base64, data)
    if not contents:
        return messages

    def with_data(part: dict[str, Any]) -> dict[str, Any]:
        if "file" not in part:
            return part
        fields = {name: value for name, value in part.items() if name != "file"}
        return {**fields, "data": contents[part["sha256"]]}

    return images.map_images(messages, with_data)
