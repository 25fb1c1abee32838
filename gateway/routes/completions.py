"""The HTTP routes of stored chat completions. They are built from their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.answers import chat_completions
from gateway.parsing import chat_api
from gateway.responses import response_operations
from gateway.routes import responses
from tailrace import log
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import delivery
from tailrace.protocol import errors, records
from tailrace.web import access, encoded_json, error_mapping

T = TypeVar("T")
METADATA_S = 1.0  # how long a completion waits for changes of its metadata
_ENDED = frozenset({"completed", "incomplete", "cancelled", "failed"})


class CompletionRoutes:
    """Show and delete stored completions for their owner."""

    def __init__(
        self,
        gate: access.Access,
        deliver: delivery.Delivery,
        operations: response_operations.ResponseOperations,
    ) -> None:
        self._gate = gate
        self._delivery = deliver
        self._operations = operations

    async def show(self, request: Request) -> Response:
        """`GET /v1/chat/completions/{id}`."""
        name, owner = await self.address(request, CredentialScope.READ)
        return encoded_json.EncodedJSON(await self.completion(name, owner))

    async def completion(self, name: str, owner: records.Owner) -> dict[str, Any]:
        """The completion with this id, with its latest metadata.

        Raises:
            errors.ApiError: it does not exist, is not finished, or failed.
        """
        responses = [f.response for f in await self._responses(name, owner)]
        if not all(response["status"] in _ENDED for response in responses):
            raise errors.completion_not_finished(name)
        if failures := [response["id"] for response in responses if response["status"] == "failed"]:
            raise errors.completion_failed(name, failures)
        whole = chat_completions.completion(responses)
        metadata = await self._metadata(responses[0]["id"], owner)
        return whole if metadata is None else {**whole, "metadata": metadata}

    async def _metadata(self, rid: str, owner: records.Owner) -> dict[str, str] | None:
        """Changed metadata; None without changes or without the archive."""
        try:
            async with asyncio.timeout(METADATA_S):
                return await self._delivery.archived.metadata(rid, owner)
        except (errors.ApiError, log.LogUnavailable, TimeoutError):
            return None

    async def messages(self, request: Request) -> Response:
        """`GET /v1/chat/completions/{id}/messages`: the messages of its request."""
        name, owner = await self.address(request, CredentialScope.READ)
        first = (await self._responses(name, owner))[0].response["id"]
        messages = (await _gather(name, [self._operations.messages(first, owner)]))[0]
        items = [
            {"id": f"{name}-{i}", **chat_completions.stored_message(message)}
            for i, message in enumerate(messages)
        ]
        query = request.query_params
        order = query.get("order") or "asc"
        return JSONResponse(
            responses.list_page(items, query.get("limit"), order, query.get("after"))
        )

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/chat/completions/{id}`.

        Choices that are already deleted do not prevent the deletion of the others, because a client
        repeats a deletion that failed half-way.
        """
        name, owner = await self.address(request, CredentialScope.CREATE)
        rids = chat_completions.response_ids(name, chat_api.MAX_CHOICES)
        deletions = await _gather(name, [self._delete_choice(rid, owner) for rid in rids])
        if not any(deletions):
            raise errors.completion_not_found(name)
        return JSONResponse({"id": name, "object": "chat.completion.deleted", "deleted": True})

    async def _delete_choice(self, rid: str, owner: records.Owner) -> bool:
        """Delete the response of a choice. Returns whether it existed."""
        try:
            if not (await self._delivery.find(rid, owner)).response["store"]:
                return False
            await self._operations.delete(rid, owner)
        except delivery.NotFound:
            return False
        return True

    async def address(self, request: Request, scope: CredentialScope) -> tuple[str, records.Owner]:
        """The id in the path, and the caller. Raises errors.ApiError."""
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        return request.path_params["completion_id"], owner

    async def _responses(self, name: str, owner: records.Owner) -> list[delivery.Snapshot]:
        """The stored responses of a completion."""
        rids = chat_completions.response_ids(name, chat_api.MAX_CHOICES)
        if not rids:
            raise errors.completion_not_found(name)
        responses = await _gather(name, [self._delivery.find(rid, owner) for rid in rids])
        if not all(each.response["store"] for each in responses):
            raise errors.completion_not_found(name)
        return responses


async def _gather(name: str, operations: Sequence[Awaitable[T]]) -> list[T]:
    """The results of all operations. Raises the first failure as an API error."""
    try:
        return await asyncio.gather(*operations)
    except delivery.NotFound as error:
        raise errors.completion_not_found(name) from error
    except error_mapping.DELIVERY_ERRORS as error:
        raise error_mapping.api_error(name, error) from error
