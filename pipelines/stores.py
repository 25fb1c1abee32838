"""Members of a pipeline's file about vector stores: storing rows, and retrieving passages
(pure)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

SOURCE: Final = "source"  # the attribute with the source record of a file
MAX_FILTERS: Final = 100
MAX_FILTER_LEVELS: Final = 8

Store = Annotated[
    str,
    msgspec.Meta(pattern=r"^vs_[A-Za-z0-9_-]{1,64}$", description="The id of a vector store."),
]
Expression = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=4_000,
        description="A Jinja expression, as between {{ and }}.",
    ),
]
Template = Annotated[
    str, msgspec.Meta(min_length=1, max_length=200_000, description="A Jinja template.")
]
AttributeName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Single = str | int | float | bool
COMPARISONS: Final = frozenset({"eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"})


class Embed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row becomes a file of a vector store, instead of a question.

    Attributes:
        text: of the file.
        filename: without it `TOPIC-PARTITION-OFFSET.txt`.
        attributes: of the file in the store, for filters; `source` is added, which names the
            record. One whose value is null is left out.
    """

    store: Store
    text: Template
    filename: Template | None = None
    attributes: Annotated[dict[AttributeName, Expression], msgspec.Meta(max_length=15)] = {}


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which files are searched: `type` compares the attribute `key` with `value`, or is `and` or
    `or` of `filters`."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"]
    key: AttributeName | None = None
    value: Single | list[Single] | None = None
    filters: Annotated[list[Filter], msgspec.Meta(min_length=1)] | None = None


class Retrieve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Passages of vector stores that the model sees with each question. The gateway searches with
    the last message of the user.

    Attributes:
        results: passages at most.
        filters: which files are searched; all without it.
        score: of the worst passage that is shown.
    """

    stores: Annotated[list[Store], msgspec.Meta(min_length=1, max_length=8)]
    results: Annotated[int, msgspec.Meta(ge=1, le=50)] = 5
    filters: Filter | None = None
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


def filter_error(root: Filter) -> str:
    """The error of a filter; empty if it is valid."""
    count = 0
    stack = [(root, 1)]
    while stack:
        each, level = stack.pop()
        count += 1
        if level > MAX_FILTER_LEVELS or count > MAX_FILTERS:
            return f"at most {MAX_FILTERS} filters on {MAX_FILTER_LEVELS} levels"
        if each.type in COMPARISONS:
            if each.key is None or each.value is None or each.filters is not None:
                return f"`{each.type}` has `key` and `value`"
            takes_list = each.type in ("in", "nin")
            if isinstance(each.value, list) is not takes_list:
                return f"the value of `{each.type}` is {'a list' if takes_list else 'no list'}"
        elif each.filters is None or each.key is not None or each.value is not None:
            return f"`{each.type}` has `filters`"
        stack += [(inner, level + 1) for inner in each.filters or ()]
    return ""
