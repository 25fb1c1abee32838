"""The HTTP routes of conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.conversations import conversations, turn_list
from gateway.conversations import erasure as conversation_erasure
from gateway.conversations import items as conversation_items
from gateway.files import files
from gateway.load import admission, rate_limits
from gateway.parsing import conversation, conversations_api, json_body
from gateway.responses import log_answers, references
from gateway.routes import request_body
from gateway.routes.responses import limit_of
from tailrace import log
from tailrace.archive import reader
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import kept_bytes
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, images, records
from tailrace.web import access, encoded_json

MAX_BODY_BYTES: Final = 900_000  # an item is one record

Shown = dict[str, Any]


class ConversationRoutes:
    """OpenAI's Conversations API, with a list, titles, pins and branches."""

    def __init__(
        self,
        gate: access.Access,
        known: conversations.Conversations,
        items: conversation_items.Items,
        turns: turn_list.ConversationTurns,
        erasure: conversation_erasure.ConversationErasure,
        refs: references.References,
        kept_files: files.Files,
        rates: rate_limits.RateLimiter,
        kept: kept_bytes.KeptBytes,
    ) -> None:
        self._gate = gate
        self._known = known
        self._items = items
        self._turns = turns
        self._erasure = erasure
        self._references = refs
        self._files = kept_files
        self._rates = rates
        self._kept = kept

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        owner = await self._owner(request, CredentialScope.CREATE)
        key = request.headers.get("idempotency-key") or None
        asked = conversations_api.created(await self._body(request, owner), key)
        metadata, title = asked.metadata or {}, asked.title or ""
        if key is not None:
            made = await log_answers.written(self._known.create_once(owner, key, metadata, title))
        else:
            shown = await self._shown(asked.items, owner)
            made = await log_answers.written(self._known.create(owner, metadata, title, shown))
        return encoded_json.EncodedJSON(as_shown(made))

    async def listed(self, request: Request) -> Response:
        """`GET /v1/conversations`: that in which something happened last comes first; an
        extension."""
        owner = await self._owner(request, CredentialScope.READ)
        limit = limit_of(request.query_params.get("limit"))
        after = request.query_params.get("after")
        try:
            found = await log_answers.read(self._known.listed(owner, after, limit))
        except reader.UnknownPlace as error:
            raise errors.invalid_value("after", "Invalid 'after': no such item.") from error
        rows = [as_shown(each) for each in found]
        return encoded_json.EncodedJSON(_page(rows[:limit], has_more=len(rows) > limit))

    async def show(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`."""
        found, _ = await self._found(request, CredentialScope.READ)
        return encoded_json.EncodedJSON(as_shown(found))

    async def change(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`: other metadata; extensions: title, pin, head."""
        found, owner = await self._found(request, CredentialScope.CREATE)
        asked = conversations_api.changed(await self._body(request, owner))
        if asked.head and asked.head not in found.nodes:
            raise errors.invalid_value("head", "Invalid 'head': no such node.")
        acts: list[tree.Act] = []
        if asked.metadata is not None:
            acts.append(tree.Changed(found.id, owner, metadata=asked.metadata))
        if asked.title is not None:
            acts.append(tree.Changed(found.id, owner, title=asked.title))
        if asked.pinned is not None:
            acts.append(tree.Changed(found.id, owner, pinned=asked.pinned))
        if asked.head is not None:
            acts.append(tree.Chosen(found.id, owner, asked.head or None))
        await log_answers.written(self._known.append(*acts))
        return encoded_json.EncodedJSON(
            as_shown(await log_answers.read(self._known.find(found.id, owner)))
        )

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}`; an extension: with its responses."""
        owner = await self._owner(request, CredentialScope.CREATE)
        name = request.path_params["conversation_id"]
        if (responses := request.query_params.get("responses")) not in (None, "true", "false"):
            raise errors.invalid_value(
                "responses", "Invalid 'responses': expected 'true' or 'false'."
            )
        if responses == "true":
            await log_answers.written(self._erasure.erase(name, owner))
        else:
            await log_answers.written(self._known.delete(name, owner))
        body = {"id": name, "object": "conversation.deleted", "deleted": True}
        return encoded_json.EncodedJSON(body)

    async def nodes(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/nodes`: the tree, in the order in which it grew; an
        extension."""
        found, _ = await self._found(request, CredentialScope.READ)
        rows = [
            {
                "id": name,
                "object": "conversation.node",
                "type": "response" if node.turn else "items",
                "parent": node.parent,
                "items": list(node.items),
                "created_at": node.at_ms // 1000,
            }
            for name, node in found.nodes.items()
        ]
        body = {"object": "list", "data": rows, "head": found.head, "path": found.path()}
        return encoded_json.EncodedJSON(body)

    async def turns(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/turns`: the tree as `nodes` has it, with what was said; an
        extension."""
        found, _ = await self._found(request, CredentialScope.READ, contents=True)
        query = request.query_params
        limit, after = limit_of(query.get("limit")), query.get("after")
        names = list(found.nodes)
        if _order(query.get("order")) == "desc":
            names.reverse()
        if after is not None:
            if after not in found.nodes:
                raise errors.invalid_value("after", "Invalid 'after': no such node.")
            names = names[names.index(after) + 1 :]
        rows = await log_answers.read(self._turns.rows(found, names[:limit]))
        body = {
            "object": "list",
            "data": rows,
            "head": found.head,
            "first_id": names[0] if rows else None,
            "last_id": names[len(rows) - 1] if rows else None,
            "has_more": len(names) > len(rows),
        }
        return encoded_json.EncodedJSON(body)

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`: of the chosen path, the newest first."""
        found, _ = await self._found(request, CredentialScope.READ, contents=True)
        query = request.query_params
        limit, after = limit_of(query.get("limit")), query.get("after")
        order = _order(query.get("order"))
        start = None
        if after is not None:
            start = self._items.node_of(found, after)
            if start not in found.path():
                raise errors.invalid_value("after", "Invalid 'after': no such item.")
        rows: list[Shown] = []
        behind = after is None
        along = self._items.along(found, newest_first=order != "asc", start=start)
        async for item in _each(along):
            if behind:
                rows.append(item)
            behind = behind or item["id"] == after
            if len(rows) > limit:
                break
        if not behind:
            raise errors.invalid_value("after", "Invalid 'after': no such item.")
        return encoded_json.EncodedJSON(_page(rows[:limit], has_more=len(rows) > limit))

    async def add(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        found, owner = await self._found(request, CredentialScope.CREATE)
        given = conversations_api.added(await self._body(request, owner))
        shown = await self._shown(given, owner)
        named = await log_answers.written(self._known.add_items(found, shown))
        rows = [{**item, "id": name} for name, item in named]
        return encoded_json.EncodedJSON(_page(rows, has_more=False))

    async def item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item_id}`."""
        found, _ = await self._found(request, CredentialScope.READ, contents=True)
        _, item = await self._item(found, request.path_params["item_id"])
        return encoded_json.EncodedJSON(item)

    async def remove(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item_id}`."""
        found, _ = await self._found(request, CredentialScope.CREATE, contents=True)
        name, _ = await self._item(found, request.path_params["item_id"])
        await log_answers.written(self._known.remove_item(found, name))
        return encoded_json.EncodedJSON(as_shown(found))

    async def _item(self, found: tree.Conversation, name: str) -> tuple[str, Shown]:
        node = self._items.node_of(found, name)
        for item in await log_answers.read(self._items.of_node(found, node)) if node else ():
            if item["id"] == name:
                return name, item
        raise errors.conversation_item_not_found(name)

    async def _shown(
        self, items: tuple[conversation.Item, ...], owner: records.Owner
    ) -> list[Shown]:
        """Items as they are kept: with what they name, and with their images. What is sealed stays
        so."""
        resolved, shown = await log_answers.read(self._references.resolve_items(items, owner))
        found = []
        for item, kept in zip(resolved, shown, strict=True):
            messages = await log_answers.read(
                self._files.whole(owner, conversation.messages([item]))
            )
            found += images.restored([kept], messages)
        return found

    async def _found(
        self, request: Request, scope: CredentialScope, *, contents: bool = False
    ) -> tuple[tree.Conversation, records.Owner]:
        owner = await self._owner(request, scope)
        name = request.path_params["conversation_id"]
        return await log_answers.read(self._known.find(name, owner, contents=contents)), owner

    async def _owner(self, request: Request, scope: CredentialScope) -> records.Owner:
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        if scope is CredentialScope.CREATE:  # what is written is kept for ever
            await self._rates.charge_request(owner.key)
        return owner

    async def _body(self, request: Request, owner: records.Owner) -> json_body.Body:
        """The body. What it says is charged like the input of a response."""
        with self._kept.account(owner.key) as account:
            raw = await request_body.arrived(request, MAX_BODY_BYTES, account)
            charge = rate_limits.Charge(owner.key)
            await self._rates.charge_tokens(charge, len(raw) / admission.CHARS_PER_TOKEN_GUESS)
            return json_body.decode(raw) if raw else {}


async def _each(items: AsyncIterator[Shown]) -> AsyncIterator[Shown]:
    """The same, with errors like `_read`."""
    try:
        async for item in items:
            yield item
    except (log.LogUnavailable, log.HistoryLost) as error:
        raise log_answers.unreadable() from error


def _order(text: str | None) -> str | None:
    """The `order` of a list. Raises ApiError."""
    if text not in (None, "asc", "desc"):
        raise errors.invalid_value("order", "Invalid 'order': expected 'asc' or 'desc'.")
    return text


def as_shown(found: tree.Conversation) -> Shown:
    """A conversation as clients are shown it."""
    return {
        "id": found.id,
        "object": "conversation",
        "created_at": found.created_at,
        "metadata": found.metadata,
        "title": found.title or None,
        "pinned": found.pinned,
        "head": found.head,
        "updated_at": found.updated_ms // 1000 or found.created_at,
    }


def _page(rows: list[Shown], *, has_more: bool) -> Shown:
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": has_more,
    }
