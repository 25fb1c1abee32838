"""Read server-sent event streams (WHATWG HTML §9.2) from their bytes.

Not by `httpx`'s `iter_lines` or `str.splitlines`: for these U+2028, U+2029, U+0085 and others end a
line too, and an answer's text may hold them, because JSON need not escape them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Final

_END_OF_LINE: Final = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Takes the bytes of one stream in pieces, cut anywhere, and gives the data of its events.

    Comments and other fields than `data` are skipped. An event whose blank line has not arrived is
    held; after the end of the stream it does not count.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the pieces of a line without its end; empty between lines
        self._data: list[str] = []  # the data lines of an event without its end; empty between
        self._returned = False  # the bytes so far end with CR: an LF that follows belongs to it

    def feed(self, piece: bytes) -> list[str]:
        """The data of every event that ends in `piece`. Bytes that are no UTF-8 become U+FFFD."""
        if not piece:
            return []
        begin = 1 if self._returned and piece.startswith(b"\n") else 0
        self._returned = piece.endswith(b"\r")
        first, *others = _END_OF_LINE.split(piece[begin:])
        self._line.append(first)
        found: list[str] = []
        for begun in others:
            self._take(b"".join(self._line), found)
            self._line = [begun]
        return found

    def _take(self, line: bytes, found: list[str]) -> None:
        if not line:
            if self._data:
                found.append("\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" ").decode(errors="replace"))


def data_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each event of a stream, as soon as the event has ended."""
    reader = EventReader()
    for piece in pieces:
        yield from reader.feed(piece)


async def adata_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """`data_of` for a stream that is awaited."""
    reader = EventReader()
    async for piece in pieces:
        for data in reader.feed(piece):
            yield data
