"""The compact form of events on a watch socket: subprotocol `tailrace.v2` (pure; docs/protocol.md,
section 6).

A delta that differs from the one before it only by its number and its text is the text alone. The
form depends on the connection only by the number of the watch and by whether a delta of the item
was sent before; the bytes of a text are a part of the event's body, which all sockets share.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tailrace.protocol import events


class _Watch:
    """What was sent of one response.

    Attributes:
        number: stands for it on its socket.
        next: the sequence_number that a text stands for; -1 before the first event.
        plain: the last delta that was sent as an object belongs to the open item and has no log
            probabilities, so a text stands for another one like it.
    """

    __slots__ = ("next", "number", "plain")

    def __init__(self, number: int) -> None:
        self.number = number
        self.next = -1
        self.plain = False


class Watches:
    """Encodes the events of all responses that one socket follows.

    Attributes:
        _by_rid: the watches of which something was sent, by response id.
    """

    __slots__ = ("_by_rid",)

    def __init__(self) -> None:
        self._by_rid: dict[str, _Watch] = {}

    def message(self, rid: str, batch: Sequence[events.Event]) -> bytes:
        """The message with these events, which follow those of the message before it. The first one
        of a watch contains its number."""
        watch = self._by_rid.get(rid)
        if watch is not None:
            return b"[%d,%s]" % (watch.number, _events(watch, batch))
        watch = self._by_rid[rid] = _Watch(self._free_number())
        return b'{"type":"watch.events","response_id":"%s","number":%d,"events":[%s]}' % (
            rid.encode(),
            watch.number,
            _events(watch, batch),
        )

    def forget(self, rid: str) -> None:
        """The watch is over: its number is free, and another watch of `rid` gets a number again."""
        self._by_rid.pop(rid, None)

    def _free_number(self) -> int:
        in_use = {watch.number for watch in self._by_rid.values()}
        return next(number for number in itertools.count() if number not in in_use)


def _events(watch: _Watch, batch: Sequence[events.Event]) -> bytes:
    parts = []
    following, plain = watch.next, watch.plain
    for event in batch:
        number, at = event.sequence_number, event.text_at
        if number != following:
            plain = False  # the item may have ended between them
        if at and plain:
            parts.append(event.body[at : event.text_to])
        else:
            parts.append(event.body)
            if at:
                plain = True
            elif event.delta is not None or event.item is not None:
                plain = False
        following = number + 1
    watch.next, watch.plain = following, plain
    return b",".join(parts)
