"""What is asked of the store of analytics (pure).

Of every query `$since` and `$until` bound the time, and `$step` is the step in ms. Each one groups
by it and keeps the five largest names only; the others are one more, whose name is null. So what
comes of it is bounded, whatever the range and however large the store.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Result(NamedTuple):
    """One result. `columns`: names of what the query selects, in its order."""

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
  SELECT NAME FROM usage_minutes WHERE minute >= $since AND minute < $until
  GROUP BY NAME ORDER BY sum(input_tokens + output_tokens) DESC, NAME LIMIT 5
)
SELECT
  epoch_ms(minute) // $step * $step AS time,
  CASE WHEN NAME IN (SELECT NAME FROM largest) THEN NAME END AS series,
  sum(responses), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(cost_nano),
  sum(priced)
FROM usage_minutes WHERE minute >= $since AND minute < $until
GROUP BY 1, 2 ORDER BY 1, 2 NULLS LAST
"""

_REQUESTS: Final = """
SELECT
  epoch_ms(minute) // $step * $step AS time, sum(responses), sum(failed),
  sum(responses) * 1000.0 / $step, max(peak)
FROM request_minutes WHERE minute >= $since AND minute < $until
GROUP BY 1 ORDER BY 1
"""

# Percentiles of minutes do not add up: of a longer step it is the highest one.
_LATENCY: Final = """
WITH largest AS (
  SELECT model FROM latency_minutes WHERE minute >= $since AND minute < $until
  GROUP BY model ORDER BY sum(first_tokens) DESC, model LIMIT 5
)
SELECT
  epoch_ms(minute) // $step * $step AS time, model,
  max(first_token_p50_ms), max(first_token_p95_ms), max(first_token_p99_ms),
  max(inter_token_p50_ms), max(inter_token_p95_ms), max(inter_token_p99_ms)
FROM latency_minutes
WHERE minute >= $since AND minute < $until AND model IN (SELECT model FROM largest)
GROUP BY 1, 2 ORDER BY 1, 2
"""

_SESSIONS: Final = """
SELECT epoch_ms(began) // $step * $step AS time, count(*)
FROM sessions WHERE began >= $since AND began < $until
GROUP BY 1 ORDER BY 1
"""

_LATEST_SESSIONS: Final = """
SELECT
  epoch_ms(began), epoch_ms(latest), issuer, tenant, subject, responses, input_tokens,
  output_tokens, cost_nano
FROM sessions WHERE latest >= $since AND began < $until AND $step > 0
ORDER BY latest DESC, subject, began LIMIT 50
"""

_ANSWERS: Final = """
WITH named AS (
  SELECT minute, pipeline || ': ' || label AS name, answers FROM answer_minutes
  WHERE minute >= $since AND minute < $until
), largest AS (
  SELECT name FROM named GROUP BY name ORDER BY sum(answers) DESC, name LIMIT 5
)
SELECT
  epoch_ms(minute) // $step * $step AS time,
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
