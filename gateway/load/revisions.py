"""Chooses the model revision of a new request, and judges whether the newest revision is worse than
the others (pure; docs/design/revisions.md)."""

from __future__ import annotations

import collections
import hashlib
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailrace.settings.shapes import Canary, Pool

WINDOW_S: Final = 300.0  # older outcomes do not count
MOST: Final = 500  # outcomes of a revision that are remembered
# First tokens that differ by less are equally fast, whatever the factor.
LEAST_DIFFERENCE_S: Final = 0.1
MAX_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Revision:
    """A model revision of a pool. `age_s`: seconds since the first of its ready workers started.
    `partitions`: those of its ready workers."""

    name: str
    age_s: float
    partitions: frozenset[int]


def from_heartbeats(beats: Sequence[Mapping[str, Any]]) -> list[Revision]:
    """The revisions of ready workers that have partitions, the newest one first."""
    revisions: dict[str, Revision] = {}
    for beat in beats:
        name, age_s, partitions = (beat.get(key) for key in ("model_rev", "age_s", "partitions"))
        if beat.get("state") != "ready" or not isinstance(partitions, list) or not partitions:
            continue
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            continue
        age_s = float(age_s) if isinstance(age_s, int | float) else 0.0
        numbers = frozenset(p for p in partitions if type(p) is int)
        before = revisions.get(name, Revision(name, 0.0, frozenset()))
        revisions[name] = Revision(name, max(before.age_s, age_s), before.partitions | numbers)
    return sorted(revisions.values(), key=lambda each: (each.age_s, each.name))


def shares(canary: Canary, revisions: Sequence[Revision], out: Collection[str]) -> dict[str, float]:
    """The share of new requests of each revision, the newest first; all 0 if none may get requests.

    Args:
        canary: the newest one's percentage, or the weight of each revision.
        revisions: from `from_heartbeats`.
        out: revisions that get no requests.
    """
    if isinstance(canary, Mapping):
        weights = {each.name: canary.get(each.name, 0.0) for each in revisions}
    else:
        # The others share the rest in proportion to their partitions.
        newest, rest = revisions[:1], revisions[1:]
        partition_count = sum(len(each.partitions) for each in rest if each.name not in out) or 1
        weights = {each.name: canary if rest else 100.0 for each in newest}
        weights |= {
            each.name: (100.0 - canary) * len(each.partitions) / partition_count for each in rest
        }
    weights = {name: 0.0 if name in out else weight for name, weight in weights.items()}
    total = sum(weights.values())
    return {name: weight / total if total else 0.0 for name, weight in weights.items()}


def pick(parts: Mapping[str, float], point: float) -> str | None:
    """The revision at `point` (from 0 up to 1); None if all parts are 0. A larger part of the first
    revision changes only the points that it gains."""
    last = None
    for name, part in parts.items():
        if part > 0:
            last = name
            if point < part:
                return name
            point -= part
    return last


def point_of(scope: str, messages: Sequence[Mapping[str, Any]]) -> float:
    """A number from 0 up to 1, from the first user message, so that it is the same for a whole
    conversation. `scope`: `Owner.cache_scope`."""
    content = next((m["content"] for m in messages if m["role"] == "user"), None)
    digest = hashlib.blake2b(msgspec.json.encode([scope, content]), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


@dataclass(slots=True)
class Record:
    """The outcomes of one revision at this gateway.

    Attributes:
        _outcomes: when responses ended (monotonic seconds), and whether they failed.
        _first_tokens: when first tokens came, and their seconds since the request.
    """

    _outcomes: collections.deque[tuple[float, bool]] = field(
        default_factory=lambda: collections.deque(maxlen=MOST)
    )
    _first_tokens: collections.deque[tuple[float, float]] = field(
        default_factory=lambda: collections.deque(maxlen=MOST)
    )

    def add_outcome(self, now: float, *, failed: bool) -> None:
        """Add the end of a response."""
        self._outcomes.append((now, failed))

    def add_first_token(self, now: float, seconds: float) -> None:
        """Add a first token."""
        self._first_tokens.append((now, seconds))

    def failures(self, now: float) -> list[bool]:
        """Whether it failed, for each response that ended recently."""
        return [failed for at, failed in self._outcomes if at > now - WINDOW_S]

    def first_tokens(self, now: float) -> list[float]:
        """Seconds until the first token, for recent ones."""
        return [seconds for at, seconds in self._first_tokens if at > now - WINDOW_S]


def worse(pool: Pool, newest: Record, others: Sequence[Record], now: float) -> str:
    """Why the newest revision is worse than the others: `errors`, `first_token`; empty: it is not,
    or the samples are too few."""
    bounds = pool.canary_bounds
    failures = newest.failures(now)
    before = [each for other in others for each in other.failures(now)]
    if min(len(failures), len(before)) >= bounds.least:
        rate, usual = (sum(each) / len(each) for each in (failures, before))
        if rate > usual + bounds.errors:
            return "errors"
    first = newest.first_tokens(now)
    usually = [each for other in others for each in other.first_tokens(now)]
    if min(len(first), len(usually)) >= bounds.least:
        half, usual = statistics.median(first), statistics.median(usually)
        if half > max(usual * bounds.first_token, usual + LEAST_DIFFERENCE_S):
            return "first_token"
    return ""


def terms(pool: Pool) -> str:
    """A digest of the settings by which revisions are weighed and judged. A verdict is valid for
    these."""
    members = [pool.canary, msgspec.structs.astuple(pool.canary_bounds)]
    return hashlib.blake2b(msgspec.json.encode(members), digest_size=8).hexdigest()
