"""What a producer may write and a reader must take: parts of records, and values of members."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from tailrace.log import Headers, Record

TEXTS: Final = (
    "",
    "\0",
    "a\0b",
    "\ufeff\u202e\u2028\u0085",
    "\U0010ffff" * 3,
    "e\u0301" * 100,
    'quote " back \\ slash / line \n',
    "x" * 40_000,  # OpenSearch refuses a keyword of more than 32,766 bytes
)
# As JSON: some of these have no exact value in 64 bits.
NUMBERS: Final = ("0", "-0.0", "9223372036854775808", "-9223372036854775809", "1" * 40, "1e308")
# Kafka takes any 64 bits. -1 is a record without a time.
TIMES: Final = (-1, 0, -(2**63), 2**63 - 1, -62_135_596_800_001, 253_402_300_800_000)
HEADERS: Final[tuple[Headers, ...]] = (
    (),
    (("a", None),),
    (("", b""), ("", None), ("a", b"1"), ("a", None)),
    (("\0 \u00fc \ufffd", b"\xff\xfe\0"),),
    tuple(("tailrace-" + each, None) for each in ("source", "pipeline", "reason", "detail")),
    (("traceparent", None), ("baggage", None), ("tag", None)),
    (("tailrace-source", b"\xff/in/0"), ("tailrace-reason", b"\xff")),
    (("h", bytes(1_040_000)),),
    tuple(("", None) for _ in range(20_000)),
)
KEYS: Final = (None, b"", b"\xff\0", b"k" * 1_040_000)
VALUES: Final = (
    *(None, b"", b"\xff", b"{", b"null", b"[]", b"[" * 10_000, b'{"a": "\\ud800"}'),
    *(b'{"text": %s, "answer": %s}' % (each.encode(), each.encode()) for each in NUMBERS),
    b'{"text": "\\u0000", "answer": {"\\u0000.a": "\\u0000"}}',
    b'{"text": "x", "answer": ' + b'{"a":' * 300 + b"1" + b"}" * 301,
    b'{"text": "' + b"x" * 1_040_000 + b'"}',
)


def records(topic: str = "in", partition: int = 0) -> Iterator[Record]:
    """Records in which each part is odd once while the others are as always, and then some in which
    several are."""
    plain: dict[str, Any] = {
        **{"timestamp": 9, "key": b"k", "value": b'{"text": "x", "answer": 1}'},
        "headers": (),
    }
    odd: dict[str, tuple[Any, ...]] = {
        **{"timestamp": TIMES, "key": KEYS, "value": VALUES},
        "headers": HEADERS,
    }
    single = ({**plain, part: each} for part, values in odd.items() for each in values)
    several = (
        dict(zip(odd, parts, strict=True))
        for parts in itertools.product(*(values[-2:] for values in odd.values()))
    )
    for offset, parts in enumerate(itertools.chain(single, several)):
        yield Record(topic, partition, offset, **parts)
