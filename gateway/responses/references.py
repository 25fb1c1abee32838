"""Resolves items and files that a request names, and opens its sealed content, before it is written
to the log."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final

from gateway.files.uploads import Uploads
from gateway.parsing import command, conversation
from gateway.responses import context
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, ids, images, records, seals

MAX_FILES: Final = 32  # that one request may name
MAX_RESPONSES: Final = 16  # that the references of one request may name: each is a look-up
# Characters of referenced items, counted at each reference. More do not fit into a record. A short
# body that names one long item often must not be expanded to find that out.
MAX_CHARACTERS: Final = records.MAX_RECORD_BYTES
_ITEM_ID: Final = re.compile(r"[a-z]+_(?P<scope>[A-Za-z0-9_-]{32})(?:_[0-9]+)?\Z")

Parts = list[dict[str, Any]]


class References:
    """Looks references up, and opens sealed content."""

    def __init__(
        self, deliver: delivery.Delivery, keys: seals.Keys | None, uploads: Uploads
    ) -> None:
        """`keys`: None if nothing is sealed."""
        self._delivery = deliver
        self._keys = keys
        self._uploads = uploads

    async def resolve(self, create: command.Create, owner: records.Owner) -> command.Create:
        """The command with references replaced by their items, file names by the file's text or
        image, and sealed content by its text.

        Raises:
            errors.ApiError: 404, the owner has not stored the item; 400, the content was not sealed
                for the owner, the owner has no such file, or the references name too many
                responses, files or bytes.
            log.LogUnavailable
        """
        if not conversation.to_resolve(create.turn):
            return create
        turn, items = await self.resolve_items(create.turn, owner)
        return dataclasses.replace(
            create, turn=turn, input=conversation.messages(turn), items=items
        )

    async def resolve_items(
        self, items: tuple[conversation.Item, ...], owner: records.Owner
    ) -> tuple[tuple[conversation.Item, ...], list[dict[str, Any]]]:
        """Items with their references resolved, and as the API shows them. Raises like
        `resolve`."""
        items_by_response: dict[str, dict[str, conversation.Item]] = {}
        files: dict[str, dict[str, Any]] = {}
        turn: list[conversation.Item] = []
        forms: list[dict[str, Any]] = []
        characters = 0
        for item in items:
            form = item
            match item:
                case conversation.Reference():
                    target = await self._referenced_item(item, owner, items_by_response)
                    characters += _length(target)
                    if characters > MAX_CHARACTERS:
                        raise errors.record_too_large()
                    turn.append(form := target)
                case conversation.Reasoning(sealed=str(sealed)):
                    text = self._open(item, sealed, "rs_", owner) or item.readable
                    turn.append(dataclasses.replace(item, text=text))
                case conversation.Compaction(sealed=sealed):
                    summary = self._open(item, sealed, "cmp_", owner)
                    if summary is None:
                        raise _cannot_open(item.where)
                    turn.append(dataclasses.replace(item, summary=summary))
                case _ if conversation.uploads(item):
                    form = await self._with_files(item, owner, files)
                    characters += _length(form)
                    if characters > MAX_CHARACTERS:
                        raise errors.record_too_large()
                    turn.append(_for_model(form))
                case _:
                    turn.append(item)
            forms.append(conversation.as_json(form))
        return tuple(turn), forms

    def _open(
        self, item: conversation.Item, sealed: str, kind: str, owner: records.Owner
    ) -> str | None:
        """The opened text; None if nothing is sealed here and the item has its plain text."""
        if self._keys is None:
            if isinstance(item, conversation.Reasoning) and item.readable:
                return None
            raise _cannot_open(item.where)
        try:
            return self._keys.open(sealed, kind, owner)
        except seals.InvalidSeal as error:
            raise _cannot_open(item.where) from error

    async def _with_files(
        self, item: conversation.Item, owner: records.Owner, files: dict[str, dict[str, Any]]
    ) -> conversation.Item:
        """The item with its files, each as a part. `files`: those of the request so far, by id."""
        for part in conversation.uploads(item):
            if part["id"] not in files:
                if len(files) == MAX_FILES:
                    raise errors.invalid_value(
                        part["where"], f"A request names at most {MAX_FILES} files."
                    )
                files[part["id"]] = await self._uploads.part(part["id"], owner, part["where"])
            if part["image"] and files[part["id"]]["type"] != "image":
                raise errors.unsupported_value(part["where"], "This file is not an image.")

        return _with_parts(item, lambda parts: [_fill(part, files) for part in parts])

    async def _referenced_item(
        self,
        reference: conversation.Reference,
        owner: records.Owner,
        items_by_response: dict[str, dict[str, conversation.Item]],
    ) -> conversation.Item:
        match = _ITEM_ID.match(reference.id)
        if match is None:
            raise errors.item_not_found(reference.id)
        rid = ids.PREFIX + match["scope"]
        if rid not in items_by_response:
            if len(items_by_response) == MAX_RESPONSES:
                raise errors.invalid_value(
                    "input",
                    f"Invalid 'input': its references name more than {MAX_RESPONSES} responses.",
                )
            items_by_response[rid] = await self._items(rid, owner)
        if reference.id not in items_by_response[rid]:
            raise errors.item_not_found(reference.id)
        return dataclasses.replace(items_by_response[rid][reference.id], where=reference.where)

    async def _items(self, rid: str, owner: records.Owner) -> dict[str, conversation.Item]:
        """The finished output items of a stored response, by id."""
        try:
            response = (await self._delivery.find(rid, owner)).response
        except (delivery.NotFound, log.HistoryLost):
            return {}
        if not response["store"]:
            return {}
        return {
            each["id"]: item
            for each in response["output"]
            if each["status"] != "in_progress" and (item := context.dialogue_item(each)) is not None
        }


def _with_parts(
    item: conversation.Item, change: Callable[[Parts], str | Parts]
) -> conversation.Item:
    match item:
        case conversation.Message(content=list(parts)):
            return dataclasses.replace(item, content=change(parts))
        case conversation.CallOutput(output=list(parts)):
            return dataclasses.replace(item, output=change(parts))
    return item


def _for_model(item: conversation.Item) -> conversation.Item:
    """The item for a model: one text, or parts if it has an image."""

    def merge(parts: Parts) -> str | Parts:
        if not images.any_in([{"content": parts}]):
            return "".join(part["text"] for part in parts)
        return [
            {"type": "text", "text": part["text"]} if part["type"] == "text" else part
            for part in parts
        ]

    return _with_parts(item, merge)


def _fill(part: dict[str, Any], files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if part["type"] != conversation.UPLOAD:
        return part
    file = files[part["id"]]
    detail = {"detail": part["detail"]} if part["detail"] and file["type"] == "image" else {}
    return {**file, **detail}


def _length(item: conversation.Item) -> int:
    """Characters of an item."""
    match item:
        case (
            conversation.Message(content=list(parts)) | conversation.CallOutput(output=list(parts))
        ):
            return sum(len(part.get("text", "")) for part in parts)
        case conversation.CallOutput(output=str(text)):
            return len(text)
        case conversation.Message(content=str(text)):
            return len(text)
        case conversation.Reasoning():
            return len(item.readable)
        case conversation.Call(input=text):
            return len(text)
    return 0


def _cannot_open(where: str) -> errors.ApiError:
    return errors.invalid_encrypted_content(f"{where}.encrypted_content")
