"""Lists of stored responses and chat completions, and the metadata of a completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers import chat_completions
from gateway.parsing import chat_api, json_body, shared_fields
from gateway.routes import completions as completion_routes
from gateway.routes import request_body
from gateway.routes.responses import limit_of
from tailrace import log, telemetry
from tailrace.archive import fold
from tailrace.archive.archived import ListQuery, UnknownPlace
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import archived
from tailrace.log import interfaces
from tailrace.protocol import errors, history, records, topics
from tailrace.web import access, encoded_json, error_mapping

MAX_BODY_BYTES: Final = 64 * 1024
_PARTITIONS: Final = topics.partitions_of(topics.HISTORY)
_METADATA: Final = "metadata["

Response_ = dict[str, Any]
Render = Callable[[Sequence[Response_]], dict[str, Any]]
"""From the Response objects of a completion's choices to its entry in a list."""


class ListRoutes:
    """Lists an owner's entries in the archive."""

    def __init__(
        self,
        gate: access.Access,
        archive: archived.ArchiveQueries,
        writer: interfaces.RecordWriter,
        completions: completion_routes.CompletionRoutes,
    ) -> None:
        self._gate = gate
        self._archive = archive
        self._writer = writer
        self._completions = completions

    async def chats(self, request: Request) -> Response:
        """`GET /v1/chat/completions`."""
        after = request.query_params.get("after")
        if after is not None:
            rids = chat_completions.response_ids(after, chat_api.MAX_CHOICES)
            after = rids[0] if rids else after
        return await self._list(request, fold.CHAT, after, chat_completions.completion)

    async def responses(self, request: Request) -> Response:
        """`GET /v1/responses`; an extension."""
        after = request.query_params.get("after")
        return await self._list(request, fold.RESPONSE, after, lambda group: group[0])

    async def update(self, request: Request) -> Response:
        """`POST /v1/chat/completions/{id}`: other metadata."""
        name, owner = await self._completions.address(request, CredentialScope.CREATE)
        body = json_body.decode(await request_body.receive(request, MAX_BODY_BYTES))
        for field in body:
            if field != "metadata":
                raise errors.unsupported_parameter(field, "Only 'metadata' can be changed.")
        if "metadata" not in body:
            raise errors.missing_required_parameter("metadata")
        metadata = shared_fields.metadata(body) or {}
        completion = await self._completions.completion(name, owner)
        rid = chat_completions.response_ids(name, chat_api.MAX_CHOICES)[0]
        try:
            await self._writer.append(
                topics.HISTORY,
                history.partition(rid, _PARTITIONS),
                history.metadata_key(rid),
                records.encode(records.Metadata(rid, owner, metadata)),
                telemetry.trace_headers(),
            )
        except log.LogUnavailable as error:
            raise errors.unavailable(
                "The log does not answer. Whether it holds the change is unknown."
            ) from error
        return encoded_json.EncodedJSON({**completion, "metadata": metadata})

    async def _list(
        self, request: Request, kind: str, after: str | None, render: Render
    ) -> Response:
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, CredentialScope.READ))
        query = request.query_params
        listing = ListQuery(
            owner.key,
            kind,
            model=query.get("model"),
            metadata=_metadata(query),
            newest_first=_newest_first(query.get("order")),
            after=after,
            limit=limit_of(query.get("limit")),
        )
        try:
            groups = await self._archive.list_responses(listing)
        except UnknownPlace as error:
            raise errors.invalid_value("after", "Invalid 'after': no such item.") from error
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(None, error) from error
        page = [render(group) for group in groups[: listing.limit]]
        body = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(groups) > listing.limit,
        }
        return encoded_json.EncodedJSON(body)


def _metadata(query: QueryParams) -> dict[str, str]:
    """`metadata[name]=value`, as SDKs write a mapping into a query."""
    pairs = {
        name[len(_METADATA) : -1]: value
        for name, value in query.multi_items()
        if name.startswith(_METADATA) and name.endswith("]")
    }
    return shared_fields.metadata({"metadata": pairs}) or {}


def _newest_first(order: str | None) -> bool:
    if order not in (None, "asc", "desc"):
        raise errors.invalid_value("order", "Invalid 'order': expected 'asc' or 'desc'.")
    return order == "desc"
