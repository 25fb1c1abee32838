"""Bodies of the Conversations API, and the field `conversation` of `POST /v1/responses` (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

from gateway.parsing import command, conversation, input_items, shared_fields
from gateway.parsing.json_body import Body
from tailrace.protocol import errors
from tailrace.settings.shapes import IfBusy

MAX_ITEMS: Final = 20  # in one batch
MAX_TITLE_CHARS: Final = 512
PARENT: Final = "conversation.parent"


@dataclass(frozen=True, slots=True)
class ConversationFields:
    """The fields of a new conversation, or of a change.

    Attributes:
        metadata, title, pinned: None: not given.
        head: the new head; "" for none.
        items: the first items of a new conversation.
    """

    metadata: dict[str, str] | None = None
    title: str | None = None
    pinned: bool | None = None
    head: str | None = None
    items: tuple[conversation.Item, ...] = ()


def parse_create(body: Body, key: str | None = None) -> ConversationFields:
    """A body of `POST /v1/conversations`. `key`: its header `Idempotency-Key`.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    _only(body, ("items", "metadata", "title"))
    items = body.get("items")
    if key is not None:
        command.checked_key(key)
        if items:
            raise errors.mutually_exclusive("Idempotency-Key", "items")
    return ConversationFields(
        shared_fields.metadata(body),
        _title(body),
        items=() if items is None else _items(items),
    )


def parse_update(body: Body) -> ConversationFields:
    """A body of `POST /v1/conversations/{id}`. Raises like `parse_create`."""
    _only(body, ("metadata", "title", "pinned", "head"))
    if all(body.get(name) is None for name in ("metadata", "title", "pinned")) and (
        "head" not in body
    ):
        raise errors.missing_required_parameter("metadata")
    pinned = body.get("pinned")
    if pinned is not None and not isinstance(pinned, bool):
        raise errors.invalid_type("pinned", "a boolean")
    head = body.get("head", "") or ""
    if not isinstance(head, str):
        raise errors.invalid_type("head", "a string")
    return ConversationFields(
        shared_fields.metadata(body) if body.get("metadata") is not None else None,
        _title(body),
        pinned,
        head if "head" in body else None,
    )


def parse_items(body: Body) -> tuple[conversation.Item, ...]:
    """The items of a body of `POST /v1/conversations/{id}/items`. Raises like `parse_create`."""
    _only(body, ("items",))
    if body.get("items") in (None, []):
        raise errors.missing_required_parameter("items")
    return _items(body["items"])


class ConversationReference(NamedTuple):
    """The conversation of a new turn, and the turn's parent."""

    id: str
    parent: command.Parent | None = None


def parse_reference(
    body: Body, *, store: bool | None, generate: bool
) -> ConversationReference | None:
    """The conversation of a body: its id, or an object with the id.

    Raises:
        errors.ApiError: 400 naming the field.
    """
    value = body.get("conversation")
    if value is None:
        return None
    where, parent = "conversation", None
    if isinstance(value, dict):
        parent = _parent(value, body)
        value, where = value.get("id"), "conversation.id"
        if value is None:
            raise errors.missing_required_parameter(where)
    if not isinstance(value, str):
        raise errors.invalid_type(where, "a string")
    if body.get("previous_response_id") is not None:
        raise errors.mutually_exclusive("previous_response_id", "conversation")
    if store is False:
        raise errors.invalid_value("store", "A turn of a conversation is stored.")
    if not generate:
        raise errors.invalid_value(
            "generate", "A turn of a conversation generates: 'generate' cannot be false."
        )
    return ConversationReference(value, parent)


def _parent(value: dict[str, Any], body: Body) -> command.Parent | None:
    """The member `parent`. A null parent is a value, too: the turn follows no node."""
    if "parent" not in value:
        return None
    node = value["parent"]
    if node is not None and not isinstance(node, str):
        raise errors.invalid_type(PARENT, "a string or null")
    if body.get("fork") is not None:
        raise errors.mutually_exclusive("fork", PARENT)
    return command.Parent(node)


def if_busy(body: Body, usual: IfBusy) -> IfBusy:
    """What to do with a turn whose predecessor is still running. Raises like `parse_reference`."""
    value = body.get("if_busy")
    if value is None:
        return usual
    values: tuple[IfBusy, ...] = get_args(IfBusy)
    for each in values:
        if value == each:
            return each
    raise errors.unsupported_value("if_busy", f"Supported values are: {', '.join(values)}.")


def _items(value: Any) -> tuple[conversation.Item, ...]:
    if not isinstance(value, list):
        raise errors.invalid_type("items", "an array of items")
    return input_items.read_list(value, "items", MAX_ITEMS)


def _title(body: Body) -> str | None:
    title = body.get("title")
    if title is None:
        return None
    if not isinstance(title, str):
        raise errors.invalid_type("title", "a string")
    if len(title) > MAX_TITLE_CHARS:
        raise errors.invalid_value(
            "title", f"Invalid 'title': expected at most {MAX_TITLE_CHARS} characters."
        )
    return title


def _only(body: Body, names: tuple[str, ...]) -> None:
    for name, value in body.items():
        if name not in names and value is not None:
            raise errors.unsupported_parameter(name)
