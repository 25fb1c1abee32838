"""The queries to the store of analytics (pure).

In every query SINCE and UNTIL bound the time, and STEP is the step in ms. Each one groups by it and
returns the five largest names only; the others are one more, whose name is null. So the result is
bounded, whatever the range and the size of the store.

A query is one text for both databases; `in_dialect` replaces the words in capitals by those of one
of them. All its parameters are whole numbers: `since`, `until` and `step`, in ms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple


class Dialect(NamedTuple):
    """The syntax of a database where the two differ.

    Attributes:
        rows_of: of a table, each key once.
        ms: of a column of times, in ms since the epoch.
        step_of: the same, at the begin of its step.
        words: of parameters.
    """

    rows_of: str
    ms: str
    step_of: str
    words: Mapping[str, str]


DUCKDB: Final = Dialect(
    r"\1",
    r"epoch_ms(\1)",
    r"epoch_ms(\1) // $step * $step",
    {
        "SINCE": "epoch_ms($since::BIGINT)",
        "UNTIL": "epoch_ms($until::BIGINT)",
        "STEP": "$step",
    },
)
CLICKHOUSE: Final = Dialect(
    # Without it replaced or deleted rows count until the server has merged them.
    r"\1 FINAL",
    r"toUnixTimestamp64Milli(\1)",
    r"intDiv(toUnixTimestamp64Milli(\1), {step:Int64}) * {step:Int64}",
    {
        "SINCE": "fromUnixTimestamp64Milli({since:Int64})",
        "UNTIL": "fromUnixTimestamp64Milli({until:Int64})",
        "STEP": "{step:Int64}",
    },
)


def in_dialect(query: str, dialect: Dialect) -> str:
    """A query of RESULTS in the words of a database."""
    for call, words in (
        ("ROWS_OF", dialect.rows_of),
        ("MS", dialect.ms),
        ("STEP_OF", dialect.step_of),
    ):
        query = re.sub(rf"\b{call}\((\w+)\)", words, query)
    return re.sub(r"\b(?:SINCE|UNTIL|STEP)\b", lambda match: dialect.words[match[0]], query)


class Result(NamedTuple):
    """One result. `columns`: names of what the query selects, in its order; `query`: see above."""

    columns: tuple[str, ...]
    query: str


_USAGE_COLUMNS: Final = (
    "time",
    "series",
    "responses",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cost_nano",
    "priced",
)
# NAME is a column of the table.
_USAGE: Final = """
WITH largest AS (
  SELECT NAME FROM ROWS_OF(usage_minutes) WHERE minute >= SINCE AND minute < UNTIL
  GROUP BY NAME ORDER BY sum(input_tokens + output_tokens) DESC, NAME LIMIT 5
)
SELECT
  STEP_OF(minute) AS time,
  CASE WHEN NAME IN (SELECT NAME FROM largest) THEN NAME END AS series,
  sum(responses), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(cost_nano),
  sum(priced)
FROM ROWS_OF(usage_minutes) WHERE minute >= SINCE AND minute < UNTIL
GROUP BY 1, 2 ORDER BY 1, 2 NULLS LAST
"""

_REQUESTS: Final = """
SELECT
  STEP_OF(minute) AS time, sum(responses), sum(failed),
  sum(responses) * 1000.0 / STEP, max(peak)
FROM ROWS_OF(request_minutes) WHERE minute >= SINCE AND minute < UNTIL
GROUP BY 1 ORDER BY 1
"""

# Percentiles of minutes do not add up: of a longer step it is the highest one.
_LATENCY: Final = """
WITH largest AS (
  SELECT model FROM ROWS_OF(latency_minutes) WHERE minute >= SINCE AND minute < UNTIL
  GROUP BY model ORDER BY sum(first_tokens) DESC, model LIMIT 5
)
SELECT
  STEP_OF(minute) AS time, model,
  max(first_token_p50_ms), max(first_token_p95_ms), max(first_token_p99_ms),
  max(inter_token_p50_ms), max(inter_token_p95_ms), max(inter_token_p99_ms)
FROM ROWS_OF(latency_minutes)
WHERE minute >= SINCE AND minute < UNTIL AND model IN (SELECT model FROM largest)
GROUP BY 1, 2 ORDER BY 1, 2
"""

_SESSIONS: Final = """
SELECT STEP_OF(began) AS time, count(*)
FROM ROWS_OF(sessions) WHERE began >= SINCE AND began < UNTIL
GROUP BY 1 ORDER BY 1
"""

_LATEST_SESSIONS: Final = """
SELECT
  MS(began), MS(latest), issuer, tenant, subject, responses, input_tokens,
  output_tokens, cost_nano
FROM ROWS_OF(sessions) WHERE latest >= SINCE AND began < UNTIL AND STEP > 0
ORDER BY latest DESC, subject, began, issuer, tenant LIMIT 50
"""

_ANSWERS: Final = """
WITH named AS (
  SELECT minute, pipeline || ': ' || label AS name, answers FROM ROWS_OF(answer_minutes)
  WHERE minute >= SINCE AND minute < UNTIL
), largest AS (
  SELECT name FROM named GROUP BY name ORDER BY sum(answers) DESC, name LIMIT 5
)
SELECT
  STEP_OF(minute) AS time,
  CASE WHEN name IN (SELECT name FROM largest) THEN name END AS series, sum(answers)
FROM named GROUP BY 1, 2 ORDER BY 1, 2 NULLS LAST
"""

RESULTS: Final[dict[str, Result]] = {
    "usage_by_model": Result(_USAGE_COLUMNS, _USAGE.replace("NAME", "model")),
    "usage_by_tenant": Result(_USAGE_COLUMNS, _USAGE.replace("NAME", "tenant")),
    "requests": Result(("time", "responses", "failed", "per_second", "peak"), _REQUESTS),
    "latency": Result(
        (
            "time",
            "series",
            "first_token_p50_ms",
            "first_token_p95_ms",
            "first_token_p99_ms",
            "inter_token_p50_ms",
            "inter_token_p95_ms",
            "inter_token_p99_ms",
        ),
        _LATENCY,
    ),
    "sessions": Result(("time", "sessions"), _SESSIONS),
    "latest_sessions": Result(
        (
            "began",
            "latest",
            "issuer",
            "tenant",
            "subject",
            "responses",
            "input_tokens",
            "output_tokens",
            "cost_nano",
        ),
        _LATEST_SESSIONS,
    ),
    "answers": Result(("time", "series", "answers"), _ANSWERS),
}
