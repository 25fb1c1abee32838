"""L8: replicas of a partition hold the same batches up to the high watermark (pure).

The input is the content of brokers' segment files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.verify.report import Counterexample, Report

# Base offset, length, leader epoch, magic, crc, attributes, last offset delta.
_HEADER = struct.Struct(">qiibIhi")
_PREFIX = 12  # bytes of base offset and length, which the length does not count


class Batch(NamedTuple):
    """A record batch. The crc covers everything from the attributes on, records included."""

    first: int
    last: int
    crc: int


def batches(segment: bytes) -> list[Batch]:
    """The whole batches of one segment. A half-written batch at the end is left out."""
    batches_, at = [], 0
    while at + _HEADER.size <= len(segment):
        first, length, _, magic, crc, _, delta = _HEADER.unpack_from(segment, at)
        if magic != 2 or length <= 0 or at + _PREFIX + length > len(segment):
            break
        batches_.append(Batch(first, first + delta, crc))
        at += _PREFIX + length
    return batches_


def judge(
    out: Report, partition: str, replicas: Mapping[str, Iterable[Batch]], high_watermark: int
) -> None:
    """Compare the replicas of one partition.

    A replica may begin later than another (retention). None may end below the high watermark.
    """
    by_replica = {
        name: {b.first: b for b in replica_batches if b.last < high_watermark}
        for name, replica_batches in replicas.items()
    }
    out.count("L8")
    begin = max(
        (min(replica_batches, default=high_watermark) for replica_batches in by_replica.values()),
        default=0,
    )
    names = sorted(by_replica)
    reference = {first: b for first, b in by_replica[names[0]].items() if first >= begin}
    for name in names[1:]:
        replica = {first: b for first, b in by_replica[name].items() if first >= begin}
        differing = next(
            (
                first
                for first in sorted(reference.keys() | replica.keys())
                if reference.get(first) != replica.get(first)
            ),
            None,
        )
        if differing is not None:
            out.fail(
                "L8",
                Counterexample(
                    f"{partition}: replicas {names[0]} and {name} differ at offset {differing}",
                    size=1,
                ),
            )
            return
    end = max((b.last for b in reference.values()), default=begin - 1) + 1
    if end < high_watermark:
        out.fail(
            "L8",
            Counterexample(
                (
                    f"{partition}: all replicas end at {end}, below the high watermark "
                    f"{high_watermark}"
                ),
                size=1,
            ),
        )
