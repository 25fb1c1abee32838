"""The parameters of a vector store search, as a request or as a tool (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.parsing import vector_filters
from gateway.parsing.json_body import Body
from tailrace.protocol import errors

MAX_QUERY_CHARS: Final = 4_096
MAX_RESULTS: Final = 50
USUAL_RESULTS: Final = 10


@dataclass(frozen=True, slots=True)
class Search:
    """A search. `least`: the minimum score of a hit."""

    queries: tuple[str, ...]
    limit: int
    least: float
    filter: vector_filters.Filter | None


def read(queries: tuple[str, ...], body: Body, prefix: str = "") -> Search:
    """The search for these texts. `prefix`: the path of `body`, for errors.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    limit = body.get("max_num_results", USUAL_RESULTS)
    if type(limit) is not int or not 1 <= limit <= MAX_RESULTS:
        raise errors.out_of_range(f"{prefix}max_num_results", 1, MAX_RESULTS)
    filters = body.get("filters")
    return Search(
        queries,
        limit,
        _threshold(body, prefix),
        None if filters is None else vector_filters.parse(filters, f"{prefix}filters"),
    )


def _threshold(body: Body, prefix: str) -> float:
    where = f"{prefix}ranking_options"
    options = body.get("ranking_options")
    if options is None:
        return 0.0
    if not isinstance(options, dict):
        raise errors.invalid_type(where, "an object")
    ranker = options.get("ranker")
    if ranker not in (None, "auto", "none", "default-2024-11-15"):
        raise errors.unsupported_value(
            f"{where}.ranker", "Supported values are: auto, none, default-2024-11-15."
        )
    least = options.get("score_threshold", 0)
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 <= least <= 1:
        raise errors.out_of_range(f"{where}.score_threshold", 0, 1)
    return float(least)
