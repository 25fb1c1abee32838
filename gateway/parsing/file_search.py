"""The tool `file_search` in a body (pure).

{"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 10,
 "filters": {"type": "eq", "key": "topic", "value": "taxes"},
 "ranking_options": {"ranker": "auto", "score_threshold": 0.5}}
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing import searches
from tailrace.protocol import errors

KIND: Final = "file_search"
RESULTS: Final = "file_search_call.results"  # of `include`
MAX_STORES: Final = 8  # each is searched separately
_FIELDS: Final = frozenset(
    {"type", "vector_store_ids", "max_num_results", "filters", "ranking_options"}
)


@dataclass(frozen=True, slots=True)
class FileSearch:
    """A parsed tool.

    Attributes:
        stores: ids, each once; their owner is not checked yet.
        results: whether the client gets the passages.
        context: maximum tokens of prompt and answer together.
    """

    stores: tuple[str, ...]
    search: searches.Search
    results: bool = False
    context: int = 0

    def for_question(self, question: str) -> searches.Search:
        """The search for a question."""
        return dataclasses.replace(self.search, queries=(question,))


def read(tool: dict[str, Any], where: str) -> FileSearch:
    """A tool of this kind.

    Raises:
        errors.ApiError: 400 naming the member.
    """
    for name, value in tool.items():
        if name not in _FIELDS and value is not None:
            raise errors.unsupported_parameter(f"{where}.{name}")
    path = f"{where}.vector_store_ids"
    stores = tool.get("vector_store_ids")
    if stores is None:
        raise errors.missing_required_parameter(path)
    if not isinstance(stores, list) or not all(isinstance(each, str) for each in stores):
        raise errors.invalid_type(path, "an array of ids of vector stores")
    distinct = tuple(dict.fromkeys(stores))
    if not 1 <= len(distinct) <= MAX_STORES:
        raise errors.invalid_value(
            path, f"Invalid '{path}': expected 1 to {MAX_STORES} vector stores."
        )
    options = {name: value for name, value in tool.items() if value is not None}
    return FileSearch(distinct, searches.read((), options, f"{where}."))
