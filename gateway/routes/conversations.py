"""The HTTP routes of conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.conversations import erasure as conversation_erasure
from gateway.conversations import items as conversation_items
from gateway.conversations import turn_list
from gateway.conversations.conversations import Conversations
from gateway.files.files import Files
from gateway.load import admission, rate_limits
from gateway.parsing import conversation, conversations_api, json_body
from gateway.responses import log_answers, references
from gateway.routes import request_body
from gateway.routes.responses import limit_of
from tailrace import log
from tailrace.archive import archived
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import kept_bytes
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, images, records
from tailrace.web import access, encoded_json

MAX_BODY_BYTES: Final = 900_000  # an item is one record

Json = dict[str, Any]


class ConversationRoutes:
    """OpenAI's Conversations API, with a list, titles, pins and branches."""

    def __init__(
        self,
        gate: access.Access,
        conversations: Conversations,
        items: conversation_items.Items,
        turns: turn_list.ConversationTurns,
        erasure: conversation_erasure.ConversationErasure,
        refs: references.References,
        files: Files,
        rates: rate_limits.RateLimiter,
        budget: kept_bytes.KeptBytes,
    ) -> None:
        self._gate = gate
        self._conversations = conversations
        self._items = items
        self._turns = turns
        self._erasure = erasure
        self._references = refs
        self._files = files
        self._rates = rates
        self._budget = budget

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations`."""
        owner = await self._owner(request, CredentialScope.CREATE)
        key = request.headers.get("idempotency-key") or None
        fields = conversations_api.parse_create(await self._body(request, owner), key)
        metadata, title = fields.metadata or {}, fields.title or ""
        if key is not None:
            conversation = await log_answers.write(
                self._conversations.create_once(owner, key, metadata, title)
            )
        else:
            items = await self._stored_items(fields.items, owner)
            conversation = await log_answers.write(
                self._conversations.create(owner, metadata, title, items)
            )
        return encoded_json.EncodedJSON(as_json(conversation))

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/conversations`: the last changed one first; an extension."""
        owner = await self._owner(request, CredentialScope.READ)
        limit = limit_of(request.query_params.get("limit"))
        after = request.query_params.get("after")
        try:
            page = await log_answers.read(self._conversations.list_page(owner, after, limit))
        except archived.UnknownPlace as error:
            raise errors.invalid_value("after", "Invalid 'after': no such item.") from error
        rows = [as_json(each) for each in page]
        return encoded_json.EncodedJSON(_page(rows[:limit], has_more=len(rows) > limit))

    async def show(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}`."""
        conversation, _ = await self._find(request, CredentialScope.READ)
        return encoded_json.EncodedJSON(as_json(conversation))

    async def change(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}`: other metadata; extensions: title, pin, head."""
        conversation, owner = await self._find(request, CredentialScope.CREATE)
        fields = conversations_api.parse_update(await self._body(request, owner))
        if fields.head and fields.head not in conversation.nodes:
            raise errors.invalid_value("head", "Invalid 'head': no such node.")
        acts: list[tree.Act] = []
        if fields.metadata is not None:
            acts.append(tree.Changed(conversation.id, owner, metadata=fields.metadata))
        if fields.title is not None:
            acts.append(tree.Changed(conversation.id, owner, title=fields.title))
        if fields.pinned is not None:
            acts.append(tree.Changed(conversation.id, owner, pinned=fields.pinned))
        if fields.head is not None:
            acts.append(tree.Chosen(conversation.id, owner, fields.head or None))
        await log_answers.write(self._conversations.append(*acts))
        return encoded_json.EncodedJSON(
            as_json(await log_answers.read(self._conversations.find(conversation.id, owner)))
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
            await log_answers.write(self._erasure.erase(name, owner))
        else:
            await log_answers.write(self._conversations.delete(name, owner))
        body = {"id": name, "object": "conversation.deleted", "deleted": True}
        return encoded_json.EncodedJSON(body)

    async def nodes(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/nodes`: the tree, oldest node first; an extension."""
        conversation, _ = await self._find(request, CredentialScope.READ)
        rows = [
            {
                "id": name,
                "object": "conversation.node",
                "type": "response" if node.turn else "items",
                "parent": node.parent,
                "items": list(node.items),
                "created_at": node.at_ms // 1000,
            }
            for name, node in conversation.nodes.items()
        ]
        body = {
            "object": "list",
            "data": rows,
            "head": conversation.head,
            "path": conversation.path(),
        }
        return encoded_json.EncodedJSON(body)

    async def turns(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/turns`: the tree like `nodes`, with contents; an
        extension."""
        conversation, _ = await self._find(request, CredentialScope.READ, contents=True)
        query = request.query_params
        limit, after = limit_of(query.get("limit")), query.get("after")
        names = list(conversation.nodes)
        if _order(query.get("order")) == "desc":
            names.reverse()
        if after is not None:
            if after not in conversation.nodes:
                raise errors.invalid_value("after", "Invalid 'after': no such node.")
            names = names[names.index(after) + 1 :]
        rows = await log_answers.read(self._turns.rows(conversation, names[:limit]))
        body = {
            "object": "list",
            "data": rows,
            "head": conversation.head,
            "first_id": names[0] if rows else None,
            "last_id": names[len(rows) - 1] if rows else None,
            "has_more": len(names) > len(rows),
        }
        return encoded_json.EncodedJSON(body)

    async def items(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items`: the items of the chosen path, newest first."""
        conversation, _ = await self._find(request, CredentialScope.READ, contents=True)
        query = request.query_params
        limit, after = limit_of(query.get("limit")), query.get("after")
        order = _order(query.get("order"))
        start = None
        if after is not None:
            start = self._items.node_of(conversation, after)
            if start not in conversation.path():
                raise errors.invalid_value("after", "Invalid 'after': no such item.")
        rows: list[Json] = []
        started = after is None
        path_items = self._items.along(conversation, newest_first=order != "asc", start=start)
        async for item in _each(path_items):
            if started:
                rows.append(item)
            started = started or item["id"] == after
            if len(rows) > limit:
                break
        if not started:
            raise errors.invalid_value("after", "Invalid 'after': no such item.")
        return encoded_json.EncodedJSON(_page(rows[:limit], has_more=len(rows) > limit))

    async def add(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/items`."""
        conversation, owner = await self._find(request, CredentialScope.CREATE)
        items = conversations_api.parse_items(await self._body(request, owner))
        stored_items = await self._stored_items(items, owner)
        entries = await log_answers.write(self._conversations.add_items(conversation, stored_items))
        rows = [{**item, "id": name} for name, item in entries]
        return encoded_json.EncodedJSON(_page(rows, has_more=False))

    async def item(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/items/{item_id}`."""
        conversation, _ = await self._find(request, CredentialScope.READ, contents=True)
        _, item = await self._item(conversation, request.path_params["item_id"])
        return encoded_json.EncodedJSON(item)

    async def remove(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/items/{item_id}`."""
        conversation, _ = await self._find(request, CredentialScope.CREATE, contents=True)
        name, _ = await self._item(conversation, request.path_params["item_id"])
        await log_answers.write(self._conversations.remove_item(conversation, name))
        return encoded_json.EncodedJSON(as_json(conversation))

    async def _item(self, conversation: tree.Conversation, name: str) -> tuple[str, Json]:
        node = self._items.node_of(conversation, name)
        for item in await log_answers.read(self._items.of_node(conversation, node)) if node else ():
            if item["id"] == name:
                return name, item
        raise errors.conversation_item_not_found(name)

    async def _stored_items(
        self, items: tuple[conversation.Item, ...], owner: records.Owner
    ) -> list[Json]:
        """Items in the form that is stored: references resolved, with images. Sealed content stays
        sealed."""
        full_items, forms = await log_answers.read(self._references.resolve_items(items, owner))
        stored = []
        for item, form in zip(full_items, forms, strict=True):
            messages = await log_answers.read(
                self._files.whole(owner, conversation.messages([item]))
            )
            stored += images.with_urls([form], messages)
        return stored

    async def _find(
        self, request: Request, scope: CredentialScope, *, contents: bool = False
    ) -> tuple[tree.Conversation, records.Owner]:
        owner = await self._owner(request, scope)
        name = request.path_params["conversation_id"]
        return await log_answers.read(
            self._conversations.find(name, owner, contents=contents)
        ), owner

    async def _owner(self, request: Request, scope: CredentialScope) -> records.Owner:
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        if scope is CredentialScope.CREATE:  # what is written is stored forever
            await self._rates.charge_request(owner.key)
        return owner

    async def _body(self, request: Request, owner: records.Owner) -> json_body.Body:
        """The body, charged like the input of a response."""
        with self._budget.account(owner.key) as account:
            raw = await request_body.receive(request, MAX_BODY_BYTES, account)
            charge = rate_limits.Charge(owner.key)
            await self._rates.charge_tokens(charge, len(raw) / admission.CHARS_PER_TOKEN_GUESS)
            return json_body.decode(raw) if raw else {}


async def _each(items: AsyncIterator[Json]) -> AsyncIterator[Json]:
    """The same items, with errors like `log_answers.read`."""
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


def as_json(conversation: tree.Conversation) -> Json:
    """A conversation as the API shows it."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
        "title": conversation.title or None,
        "pinned": conversation.pinned,
        "head": conversation.head,
        "updated_at": conversation.updated_ms // 1000 or conversation.created_at,
    }


def _page(rows: list[Json], *, has_more: bool) -> Json:
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": has_more,
    }
