"""A vector database in memory, held to the same contract as Milvus
(`tests/support/vectors_contract.py`)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from tailrace.vectors.contract import Hit, Passage, Unavailable, Where


class MemoryVectors:
    """Rows by key.

    Attributes:
        away: no call gets an answer while it is set.
        full: no row is taken while it is set.
        folded: how many rows were folded, those that were there already too.
        attempts: how many calls would have folded rows.
        refused: texts of rows that are never taken.
    """

    def __init__(self) -> None:
        self.away = False
        self.full = False
        self.folded = self.attempts = 0
        self.refused: set[str] = set()
        self.rows: dict[str, Passage] = {}
        self._positions: dict[int, int] = {}

    def open(self) -> None:
        self._answer()

    def positions(self) -> dict[int, int]:
        self._answer()
        return dict(self._positions)

    def fold(
        self, passages: Sequence[Passage], erased: Sequence[str], positions: Mapping[int, int]
    ) -> None:
        self.attempts += bool(passages)
        self.check_writes()
        if self.refused & {each.text for each in passages}:
            raise Unavailable("code 6")
        self.folded += len(passages)
        self.rows.update({each.key: each for each in passages})
        for key in erased:
            self.rows.pop(key, None)
        self._positions.update(positions)

    def check_writes(self) -> None:
        self._answer()
        if self.full:
            raise Unavailable("no room")

    def search(self, where: Where, model: str, vector: bytes, limit: int) -> list[Hit]:
        self._answer()
        found = [
            Hit(each.attachment, each.number, each.text, _cosine(each.vector, vector))
            for each in self._visible(where)
            if each.model == model and len(each.vector) == len(vector)
        ]
        return sorted(found, key=lambda each: -each.score)[:limit]

    def numbers(self, where: Where, model: str) -> set[int]:
        self._answer()
        return {each.number for each in self._visible(where) if each.model == model}

    def texts(self, where: Where) -> list[str]:
        self._answer()
        return [each.text for each in sorted(self._visible(where), key=lambda each: each.number)]

    def close(self) -> None:
        """Nothing is open."""

    def _visible(self, where: Where) -> list[Passage]:
        return [
            each
            for each in self.rows.values()
            if (each.scope, each.store) == (where.scope, where.store)
            and each.attachment in where.attachments
        ]

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("away")


def _cosine(one: bytes, other: bytes) -> float:
    a, b = (struct.unpack(f"<{len(each) // 4}f", each) for each in (one, other))
    product: float = sum(x * y for x, y in zip(a, b, strict=True))
    return product / (math.hypot(*a) * math.hypot(*b))
