"""Counts of an input partition, stored with its committed offset (pure).

The offset's metadata is in the transaction of the outputs, so the counts are as exact as the
outputs.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one partition since its first one.

    Attributes:
        found: their output was in the output topic already.
        requests: of all answers, as the tokens, also of answers that existed when they were
            requested again.
        look_until: rows below this offset are read again, so their outputs may exist.
        mark: `log.Mark` of the last row; empty if it is not known.
    """

    read: Count = 0
    skipped: Count = 0
    answered: Count = 0
    alerted: Count = 0
    dead: Count = 0
    requests: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    found: Count = 0
    look_until: Count = 0
    mark: str = ""

    def plus(self, other: Counts) -> Counts:
        """Both together; `look_until` and `mark` stay."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        return msgspec.structs.replace(self, **sums)

    def encode(self) -> str:
        """As metadata of an offset."""
        return msgspec.json.encode(self).decode()


SUMS: Final = tuple(name for name in Counts.__struct_fields__ if name not in ("look_until", "mark"))


def decode(metadata: str | None) -> Counts:
    """The counts of an offset's metadata; zeros where it has none."""
    try:
        return msgspec.json.decode(metadata or "[]", type=Counts)
    except msgspec.MsgspecError:
        return Counts()
