"""The jobs, and the topics that they write (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

TABLES: Final = "tables"  # sql/tables.sql, which each job begins with
GAP_S: Final = 1800  # after this time without a request a user's next one begins a session


@dataclass(frozen=True, slots=True)
class Result:
    """A topic of results, one compacted record for each key.

    Attributes:
        columns: name and type by JSON: `text`, `time` (ISO 8601, UTC), `count` or `number`. Those
            of the key come first.
        keys: how many of the columns are the key.
    """

    name: str
    columns: Mapping[str, str]
    keys: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.columns)[: self.keys]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self.columns)[self.keys :]

    def topic(self, prefix: str) -> str:
        return f"{prefix}.{self.name}"


USAGE_MINUTES: Final = Result(
    "usage_minutes",
    {
        "minute": "time",
        "model": "text",
        "tenant": "text",
        "responses": "count",
        "input_tokens": "count",
        "output_tokens": "count",
        "cached_tokens": "count",
        "cost_nano": "count",
        "priced": "count",
    },
    3,
)
REQUEST_MINUTES: Final = Result(
    "request_minutes",
    {
        "minute": "time",
        "responses": "count",
        "failed": "count",
        "per_second": "number",
        "peak": "count",
    },
    1,
)
LATENCY_MINUTES: Final = Result(
    "latency_minutes",
    {
        "minute": "time",
        "model": "text",
        "first_tokens": "count",
        "first_token_p50_ms": "number",
        "first_token_p95_ms": "number",
        "first_token_p99_ms": "number",
        "inter_tokens": "count",
        "inter_token_p50_ms": "number",
        "inter_token_p95_ms": "number",
        "inter_token_p99_ms": "number",
    },
    2,
)
SESSIONS: Final = Result(
    "sessions",
    {
        "issuer": "text",
        "tenant": "text",
        "subject": "text",
        "began": "time",
        "latest": "time",
        "responses": "count",
        "input_tokens": "count",
        "output_tokens": "count",
        "cost_nano": "count",
    },
    4,
)
ANSWER_MINUTES: Final = Result(
    "answer_minutes",
    {
        "minute": "time",
        "pipeline": "text",
        "label": "text",
        "answers": "count",
        "input_tokens": "count",
        "output_tokens": "count",
    },
    3,
)

JOBS: Final[Mapping[str, tuple[Result, ...]]] = {
    "usage": (USAGE_MINUTES, REQUEST_MINUTES, LATENCY_MINUTES),
    "sessions": (SESSIONS,),
    "answers": (ANSWER_MINUTES,),
}
RESULTS: Final = tuple(result for results in JOBS.values() for result in results)


def newest_checkpoint(names: Iterable[str]) -> str | None:
    """The newest complete checkpoint of one run of a job: of the names `chk-N` that have metadata
    the one with the largest N; None where there is none."""
    numbers = [int(name[4:]) for name in names if name.startswith("chk-") and name[4:].isdigit()]
    return f"chk-{max(numbers)}" if numbers else None
