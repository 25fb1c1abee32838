"""Bodies of the Vector Stores API (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing import file_text, searches, shared_fields
from gateway.parsing.json_body import Body
from tailrace.protocol import errors
from tailrace.protocol.vector_stores import Value

MAX_NAME_CHARS: Final = 256
MAX_DAYS: Final = 365
MAX_FILES: Final = 500  # of one call
MAX_ATTRIBUTES: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
MAX_QUERIES: Final = 8
LEAST_SIZE: Final = 100
USUAL_SIZE: Final = 800


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a file is split, in tokens. `static`: given by the client; else adapted to the model."""

    size: int = USUAL_SIZE
    overlap: int = USUAL_SIZE // 2
    static: bool = False

    def fitting(self, longest: int) -> Chunking:
        """The chunking for a model with a context of `longest` tokens. Estimates may be off by a
        quarter.

        Raises:
            errors.ApiError: 400, pieces of this size do not fit.
        """
        most = max(1, longest * 3 // 4)
        if self.size <= most:
            return self
        if self.static:
            raise errors.invalid_value(
                "chunking_strategy.static.max_chunk_size_tokens",
                f"The embedding model of this deployment takes at most {most} tokens.",
            )
        return Chunking(most, most // 2)


@dataclass(frozen=True, slots=True)
class StoreFields:
    """The fields of a new store, or of a change.

    Attributes:
        name, description, metadata: None: not given. days: days without use until it expires; None:
            not given; 0: never.
        files: those of a new store.
    """

    name: str | None
    description: str | None
    metadata: dict[str, str] | None
    days: int | None
    files: tuple[str, ...] = ()
    chunking: Chunking = Chunking()


@dataclass(frozen=True, slots=True)
class Addition:
    """A file to add to a store."""

    file: str
    attributes: dict[str, Value]
    chunking: Chunking


def parse_create(body: Body) -> StoreFields:
    """A body of `POST /v1/vector_stores`.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    _only(
        body,
        ("name", "description", "metadata", "expires_after", "file_ids", "chunking_strategy"),
    )
    files = body.get("file_ids")
    return StoreFields(
        _text(body, "name"),
        _text(body, "description"),
        shared_fields.metadata(body),
        _days(body),
        () if files is None else _names(files, "file_ids"),
        _chunking(body),
    )


def parse_update(body: Body) -> StoreFields:
    """A body of `POST /v1/vector_stores/{id}`. A null removes the expiry. Raises like
    `parse_create`."""
    _only(body, ("name", "description", "metadata", "expires_after"))
    days = 0 if "expires_after" in body and body["expires_after"] is None else _days(body)
    return StoreFields(
        _text(body, "name"), _text(body, "description"), shared_fields.metadata(body), days
    )


def parse_file(body: Body) -> Addition:
    """A body of `POST /v1/vector_stores/{id}/files`. Raises like `parse_create`."""
    _only(body, ("file_id", "attributes", "chunking_strategy"))
    return _addition(body, "")


def parse_batch(body: Body) -> list[Addition]:
    """A body of `POST /v1/vector_stores/{id}/file_batches`. Raises like `parse_create`."""
    _only(body, ("file_ids", "files", "attributes", "chunking_strategy"))
    each = body.get("files")
    if each is None:
        if body.get("file_ids") is None:
            raise errors.missing_required_parameter("file_ids")
        attributes, chunking = _attributes(body.get("attributes"), "attributes"), _chunking(body)
        names = _names(body["file_ids"], "file_ids")
        return [Addition(name, attributes, chunking) for name in names]
    for other in ("file_ids", "attributes", "chunking_strategy"):
        if body.get(other) is not None:
            raise errors.mutually_exclusive("files", other)
    if not isinstance(each, list) or not 0 < len(each) <= MAX_FILES:
        raise errors.invalid_type("files", f"an array of 1 to {MAX_FILES} objects")
    additions = []
    for index, entry in enumerate(each):
        if not isinstance(entry, dict):
            raise errors.invalid_type(f"files[{index}]", "an object")
        additions.append(_addition(entry, f"files[{index}]."))
    if len({one.file for one in additions}) < len(additions):
        raise errors.invalid_value("files", "Invalid 'files': a file occurs twice.")
    return additions


def parse_attributes(body: Body) -> dict[str, Value]:
    """A body of `POST /v1/vector_stores/{id}/files/{file_id}`. Raises like `parse_create`."""
    _only(body, ("attributes",))
    if "attributes" not in body:
        raise errors.missing_required_parameter("attributes")
    return _attributes(body["attributes"], "attributes")


def search(body: Body) -> searches.Search:
    """A body of `POST /v1/vector_stores/{id}/search`. Raises like `parse_create`."""
    _only(body, ("query", "filters", "max_num_results", "ranking_options", "rewrite_query"))
    if body.get("rewrite_query"):
        raise errors.unsupported_parameter("rewrite_query")
    query = body.get("query")
    if query is None:
        raise errors.missing_required_parameter("query")
    queries = query if isinstance(query, list) else [query]
    if not 0 < len(queries) <= MAX_QUERIES:
        raise errors.invalid_type("query", f"a string, or an array of 1 to {MAX_QUERIES}")
    for each in queries:
        if not isinstance(each, str):
            raise errors.invalid_type("query", "a string, or an array of strings")
        if not 0 < len(each.strip()) <= len(each) <= searches.MAX_QUERY_CHARS:
            raise errors.invalid_value(
                "query", f"Invalid 'query': expected 1 to {searches.MAX_QUERY_CHARS} characters."
            )
    return searches.read(tuple(queries), body)


def _addition(body: Body, prefix: str) -> Addition:
    file = body.get("file_id")
    if file is None:
        raise errors.missing_required_parameter(f"{prefix}file_id")
    if not isinstance(file, str):
        raise errors.invalid_type(f"{prefix}file_id", "a string")
    attributes = _attributes(body.get("attributes"), f"{prefix}attributes")
    return Addition(file, attributes, _chunking(body, prefix))


def _chunking(body: Body, prefix: str = "") -> Chunking:
    where = f"{prefix}chunking_strategy"
    value = body.get("chunking_strategy")
    if value is None:
        return Chunking()
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if kind == "auto":
        return Chunking()
    if kind != "static":
        raise errors.unsupported_value(f"{where}.type", "Supported values are: auto, static.")
    static = value.get("static")
    if not isinstance(static, dict):
        raise errors.invalid_type(f"{where}.static", "an object")
    size = static.get("max_chunk_size_tokens")
    if type(size) is not int or not LEAST_SIZE <= size <= file_text.MAX_SIZE:
        raise errors.out_of_range(
            f"{where}.static.max_chunk_size_tokens", LEAST_SIZE, file_text.MAX_SIZE
        )
    overlap = static.get("chunk_overlap_tokens")
    if type(overlap) is not int or not 0 <= overlap <= size // 2:
        raise errors.out_of_range(f"{where}.static.chunk_overlap_tokens", 0, size // 2)
    return Chunking(size, overlap, static=True)


def _attributes(value: Any, where: str) -> dict[str, Value]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_ATTRIBUTES:
        raise errors.invalid_type(where, f"an object with at most {MAX_ATTRIBUTES} members")
    for key, each in value.items():
        if len(key) > MAX_KEY_CHARS:
            raise errors.invalid_value(where, f"A key has at most {MAX_KEY_CHARS} characters.")
        if not isinstance(each, str | int | float | bool):
            raise errors.invalid_type(f"{where}.{key}", "a string, a number or a boolean")
        if isinstance(each, str) and len(each) > MAX_VALUE_CHARS:
            raise errors.invalid_value(where, f"A value has at most {MAX_VALUE_CHARS} characters.")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    if (
        not isinstance(value, list)
        or len(value) > MAX_FILES
        or not all(isinstance(each, str) for each in value)
    ):
        raise errors.invalid_type(where, f"an array of at most {MAX_FILES} ids of files")
    return tuple(dict.fromkeys(value))


def _days(body: Body) -> int | None:
    value = body.get("expires_after")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise errors.invalid_type("expires_after", "an object")
    if value.get("anchor") != "last_active_at":
        raise errors.unsupported_value(
            "expires_after.anchor", "Supported values are: last_active_at."
        )
    days = value.get("days")
    if type(days) is not int or not 1 <= days <= MAX_DAYS:
        raise errors.out_of_range("expires_after.days", 1, MAX_DAYS)
    return days


def _text(body: Body, field: str) -> str | None:
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str):
        raise errors.invalid_type(field, "a string")
    if len(value) > MAX_NAME_CHARS:
        raise errors.invalid_value(
            field, f"Invalid '{field}': expected at most {MAX_NAME_CHARS} characters."
        )
    return value


def _only(body: Body, names: Sequence[str]) -> None:
    for name, value in body.items():
        if name not in names and value is not None:
            raise errors.unsupported_parameter(name)
