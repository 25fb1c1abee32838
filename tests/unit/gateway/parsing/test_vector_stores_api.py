"""Bodies of the Vector Stores API, and filters."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import vector_filters, vector_stores_api
from gateway.parsing.vector_stores_api import Chunking
from tailrace.protocol import errors
from tests.support import cases

STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50}}
HAS: dict[str, Any] = {"topic": "tax", "year": 2020, "open": True}


def part(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value}


@cases.each(
    ("filter_", "passes"),
    [
        (part("eq", "topic", "tax"), True),
        (part("eq", "topic", "taxes"), False),
        (part("ne", "topic", "taxes"), True),
        (part("ne", "gone", "x"), True),
        (part("eq", "open", True), True),
        (part("eq", "open", 1), False),
        (part("eq", "year", 2020.0), True),
        (part("gt", "year", 2019), True),
        (part("gt", "year", 2020), False),
        (part("gte", "year", 2020), True),
        (part("lt", "year", 2020), False),
        (part("lte", "year", 2020), True),
        (part("lt", "topic", "tay"), True),
        (part("lt", "topic", 5), False),
        (part("gt", "open", 0), False),
        (part("gt", "gone", 0), False),
        (part("in", "topic", ["a", "tax"]), True),
        (part("in", "gone", ["a"]), False),
        (part("nin", "topic", ["a", "tax"]), False),
        (part("nin", "gone", ["a"]), True),
        ({"type": "and", "filters": [part("eq", "year", 2020), part("eq", "topic", "x")]}, False),
        ({"type": "or", "filters": [part("eq", "year", 2020), part("eq", "topic", "x")]}, True),
    ],
)
def test_what_a_filter_lets_through(filter_: dict[str, Any], passes: bool) -> None:
    assert vector_filters.parse(filter_)(HAS) is passes


DEEP: dict[str, Any] = part("eq", "a", 1)
for _ in range(8):
    DEEP = {"type": "and", "filters": [DEEP]}


@cases.each(
    ("filter_", "param"),
    [
        ("x", "filters"),
        ({"type": "like", "key": "a", "value": 1}, "filters.type"),
        ({"type": "eq", "value": 1}, "filters.key"),
        ({"type": "eq", "key": "a", "value": {}}, "filters.value"),
        (part("in", "a", "b"), "filters.value"),
        (part("gt", "a", True), "filters.value"),
        ({"type": "and", "filters": []}, "filters.filters"),
        ({"type": "or", "filters": [part("eq", "a", 1), 5]}, "filters.filters[1]"),
        (DEEP, "filters" + ".filters[0]" * 8),
        ({"type": "and", "filters": [part("eq", "a", 1)] * 100}, "filters.filters[99]"),
    ],
)
def test_a_filter_is_refused_by_its_part(filter_: Any, param: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        vector_filters.parse(filter_)
    assert (error.value.status, error.value.param) == (400, param)


def test_a_store() -> None:
    fields = vector_stores_api.parse_create(
        {
            "name": "n",
            "metadata": {"a": "b"},
            "expires_after": {"anchor": "last_active_at", "days": 3},
            "file_ids": ["f", "g", "f"],
            "chunking_strategy": STATIC,
        }
    )
    assert (fields.name, fields.metadata, fields.days) == ("n", {"a": "b"}, 3)
    assert (fields.files, fields.chunking) == (("f", "g"), Chunking(200, 50, True))
    assert vector_stores_api.parse_update({"expires_after": None}).days == 0
    assert vector_stores_api.parse_update({"name": "m"}).days is None


def test_files_of_a_batch() -> None:
    together = vector_stores_api.parse_batch({"file_ids": ["f", "g"], "attributes": {"a": 1}})
    assert [(each.file, each.attributes) for each in together] == [("f", {"a": 1}), ("g", {"a": 1})]
    apart = vector_stores_api.parse_batch(
        {"files": [{"file_id": "f", "chunking_strategy": STATIC}, {"file_id": "g"}]}
    )
    assert [each.chunking.size for each in apart] == [200, 800]


def test_pieces_fit_the_model() -> None:
    assert Chunking().fitting(8_000) == Chunking(800, 400)
    assert Chunking().fitting(512) == Chunking(384, 192)
    assert Chunking(200, 50, True).fitting(512) == Chunking(200, 50, True)
    with pytest.raises(errors.ApiError, match="takes at most 384 tokens"):
        Chunking(400, 50, True).fitting(512)


def static_chunking(size: Any, overlap: Any) -> dict[str, Any]:
    static = {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}
    return {"file_id": "f", "chunking_strategy": {"type": "static", "static": static}}


@cases.each(
    ("parse", "body", "param"),
    [
        (vector_stores_api.parse_create, {"name": 5}, "name"),
        (vector_stores_api.parse_create, {"name": "x" * 257}, "name"),
        (vector_stores_api.parse_create, {"other": 5}, "other"),
        (vector_stores_api.parse_create, {"file_ids": ["x"] * 501}, "file_ids"),
        (vector_stores_api.parse_create, {"expires_after": {"days": 3}}, "expires_after.anchor"),
        (
            vector_stores_api.parse_create,
            {"expires_after": {"anchor": "last_active_at", "days": 366}},
            "expires_after.days",
        ),
        (vector_stores_api.parse_file, {}, "file_id"),
        (vector_stores_api.parse_file, {"file_id": "f", "attributes": {"a": []}}, "attributes.a"),
        (
            vector_stores_api.parse_file,
            {"file_id": "f", "attributes": {str(n): 1 for n in range(17)}},
            "attributes",
        ),
        (
            vector_stores_api.parse_file,
            static_chunking(99, 0),
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            vector_stores_api.parse_file,
            static_chunking(4_001, 0),
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            vector_stores_api.parse_file,
            static_chunking(100, 51),
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
        (vector_stores_api.parse_batch, {}, "file_ids"),
        (vector_stores_api.parse_batch, {"files": [], "file_ids": ["f"]}, "file_ids"),
        (vector_stores_api.parse_batch, {"files": [{"file_id": "f"}] * 2}, "files"),
        (vector_stores_api.search, {}, "query"),
        (vector_stores_api.search, {"query": []}, "query"),
        (vector_stores_api.search, {"query": " "}, "query"),
        (vector_stores_api.search, {"query": "q", "max_num_results": 51}, "max_num_results"),
        (vector_stores_api.search, {"query": "q", "rewrite_query": True}, "rewrite_query"),
        (
            vector_stores_api.search,
            {"query": "q", "ranking_options": {"score_threshold": 2}},
            "ranking_options.score_threshold",
        ),
    ],
)
def test_a_body_is_refused_by_its_field(parse: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(errors.ApiError) as error:
        parse(body)
    assert (error.value.status, error.value.param) == (400, param)
