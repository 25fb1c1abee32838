"""Items and files that a request names, and what it carries sealed, resolved before it is written
to the log."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Final

from gateway.files import uploads
from gateway.parsing import command, conversation
from gateway.responses import context
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, ids, images, records, seals

MAX_FILES: Final = 32  # that one request may name
MAX_RESPONSES: Final = 16  # that the references of one request may name: each is a look-up
# Of the items that references stand for, as often as they are named. More fit into no record; a
# short body that names one long item often must not be written out to find that out.
MAX_CHARACTERS: Final = records.MAX_RECORD_BYTES
_ITEM_ID: Final = re.compile(r"[a-z]+_(?P<scope>[A-Za-z0-9_-]{32})(?:_[0-9]+)?\Z")

Parts = list[dict[str, Any]]


class References:
    """Looks references up, and opens what is sealed."""

    def __init__(
        self, deliver: delivery.Delivery, keys: seals.Keys | None, kept: uploads.Uploads
    ) -> None:
        """`keys`: None where nothing is sealed."""
        self._delivery = deliver
        self._keys = keys
        self._uploads = kept

    async def resolve(self, create: command.Create, owner: records.Owner) -> command.Create:
        """The command with its references replaced by the items, the files that it names by their
        text or image, and with the text of what is sealed.

        Raises:
            errors.ApiError: 404 for an item that the owner has not stored; 400 for content that
                was not sealed for the owner, for a file that the owner has not, for references to
                too many responses or files, or to more than a record holds.
            log.LogUnavailable
        """
        if not conversation.unresolved(create.turn):
            return create
        turn, shown = await self.resolve_items(create.turn, owner)
        return dataclasses.replace(
            create, turn=turn, input=conversation.messages(turn), items=shown
        )

    async def resolve_items(
        self, items: tuple[conversation.Item, ...], owner: records.Owner
    ) -> tuple[tuple[conversation.Item, ...], list[dict[str, Any]]]:
        """Items with what they name, and how they are shown. Raises like `resolve`."""
        known: dict[str, dict[str, conversation.Item]] = {}
        files: dict[str, dict[str, Any]] = {}
        turn: list[conversation.Item] = []
        shown: list[dict[str, Any]] = []
        characters = 0
        for item in items:
            seen = item
            match item:
                case conversation.Reference():
                    named = await self._referenced(item, owner, known)
                    characters += _length(named)
                    if characters > MAX_CHARACTERS:
                        raise errors.record_too_large()
                    turn.append(seen := named)
                case conversation.Reasoning(sealed=str(sealed)):
                    text = self._opened(item, sealed, "rs_", owner) or item.text
                    turn.append(dataclasses.replace(item, text=text))
                case conversation.Compaction(sealed=sealed):
                    summary = self._opened(item, sealed, "cmp_", owner)
                    if summary is None:
                        raise _not_opened(item.where)
                    turn.append(dataclasses.replace(item, summary=summary))
                case _ if conversation.uploads(item):
                    seen = await self._with_files(item, owner, files)
                    characters += _length(seen)
                    if characters > MAX_CHARACTERS:
                        raise errors.record_too_large()
                    turn.append(_as_told(seen))
                case _:
                    turn.append(item)
            shown.append(conversation.shown(seen))
        return tuple(turn), shown

    def _opened(
        self, item: conversation.Item, sealed: str, kind: str, owner: records.Owner
    ) -> str | None:
        """The text; None where nothing is sealed and the item has its text beside."""
        if self._keys is None:
            if isinstance(item, conversation.Reasoning) and item.text:
                return None
            raise _not_opened(item.where)
        try:
            return self._keys.open(sealed, kind, owner)
        except seals.InvalidSeal as error:
            raise _not_opened(item.where) from error

    async def _with_files(
        self, item: conversation.Item, owner: records.Owner, known: dict[str, dict[str, Any]]
    ) -> conversation.Item:
        """The item with the files that it names, each a part of its own; `known`: those of the
        request so far, by id."""
        for part in conversation.uploads(item):
            if part["id"] not in known:
                if len(known) == MAX_FILES:
                    raise errors.invalid_value(
                        part["where"], f"A request names at most {MAX_FILES} files."
                    )
                known[part["id"]] = await self._uploads.part(part["id"], owner, part["where"])
            if part["image"] and known[part["id"]]["type"] != "image":
                raise errors.unsupported_value(part["where"], "This file is no image.")

        return _with_parts(item, lambda parts: [_filled(part, known) for part in parts])

    async def _referenced(
        self,
        reference: conversation.Reference,
        owner: records.Owner,
        known: dict[str, dict[str, conversation.Item]],
    ) -> conversation.Item:
        found = _ITEM_ID.match(reference.id)
        if found is None:
            raise errors.item_not_found(reference.id)
        rid = ids.PREFIX + found["scope"]
        if rid not in known:
            if len(known) == MAX_RESPONSES:
                raise errors.invalid_value(
                    "input",
                    f"Invalid 'input': its references name more than {MAX_RESPONSES} responses.",
                )
            known[rid] = await self._items(rid, owner)
        if reference.id not in known[rid]:
            raise errors.item_not_found(reference.id)
        return dataclasses.replace(known[rid][reference.id], where=reference.where)

    async def _items(self, rid: str, owner: records.Owner) -> dict[str, conversation.Item]:
        """The whole output items of a stored response, by id."""
        try:
            response = (await self._delivery.find(rid, owner)).response
        except (delivery.NotFound, log.HistoryLost):
            return {}
        if not response["store"]:
            return {}
        return {
            each["id"]: item
            for each in response["output"]
            if each["status"] != "in_progress" and (item := context.said(each)) is not None
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


def _as_told(item: conversation.Item) -> conversation.Item:
    """As a model is told it: one text, or parts if an image is among them."""

    def told(parts: Parts) -> str | Parts:
        if not images.any_in([{"content": parts}]):
            return "".join(part["text"] for part in parts)
        return [
            {"type": "text", "text": part["text"]} if part["type"] == "text" else part
            for part in parts
        ]

    return _with_parts(item, told)


def _filled(part: dict[str, Any], known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if part["type"] != conversation.UPLOAD:
        return part
    found = known[part["id"]]
    detail = {"detail": part["detail"]} if part["detail"] and found["type"] == "image" else {}
    return {**found, **detail}


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
        case conversation.Reasoning(text=text) | conversation.Call(input=text):
            return len(text)
    return 0


def _not_opened(where: str) -> errors.ApiError:
    return errors.invalid_encrypted_content(f"{where}.encrypted_content")
