"""The HTTP routes of chat completions that exist. They are made of their responses."""

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
CHANGED_S = 1.0  # how long a completion is kept waiting for changes of its metadata
_ENDED = frozenset({"completed", "incomplete", "cancelled", "failed"})


class CompletionRoutes:
    """Show and delete completions, for their owner, unless they are not stored."""

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
        name, owner = await self.addressed(request, CredentialScope.READ)
        return encoded_json.EncodedJSON(await self.completed(name, owner))

    async def completed(self, name: str, owner: records.Owner) -> dict[str, Any]:
        """The completion with this id, with the metadata that its owner gave it last.

        Raises:
            errors.ApiError: it is not there, not finished, or failed.
        """
        found = [f.response for f in await self._found(name, owner)]
        if not all(response["status"] in _ENDED for response in found):
            raise errors.completion_not_finished(name)
        if failed := [response["id"] for response in found if response["status"] == "failed"]:
            raise errors.completion_failed(name, failed)
        shown = chat_completions.completion(found)
        metadata = await self._changed(found[0]["id"], owner)
        return shown if metadata is None else {**shown, "metadata": metadata}

    async def _changed(self, rid: str, owner: records.Owner) -> dict[str, str] | None:
        """Metadata that was changed. Without the archive it is what the request gave."""
        try:
            async with asyncio.timeout(CHANGED_S):
                return await self._delivery.archived.metadata(rid, owner)
        except (errors.ApiError, log.LogUnavailable, TimeoutError):
            return None

    async def messages(self, request: Request) -> Response:
        """`GET /v1/chat/completions/{id}/messages`: those it was asked with."""
        name, owner = await self.addressed(request, CredentialScope.READ)
        first = (await self._found(name, owner))[0].response["id"]
        asked = (await _answered(name, [self._operations.messages(first, owner)]))[0]
        items = [
            {"id": f"{name}-{i}", **chat_completions.stored_message(message)}
            for i, message in enumerate(asked)
        ]
        query = request.query_params
        order = query.get("order") or "asc"
        return JSONResponse(responses.listed(items, query.get("limit"), order, query.get("after")))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/chat/completions/{id}`.

        Choices that are deleted already do not keep the others: a client repeats a deletion that
        failed in between.
        """
        name, owner = await self.addressed(request, CredentialScope.CREATE)
        rids = chat_completions.response_ids(name, chat_api.MAX_CHOICES)
        deleted = await _answered(name, [self._deleted(rid, owner) for rid in rids])
        if not any(deleted):
            raise errors.completion_not_found(name)
        return JSONResponse({"id": name, "object": "chat.completion.deleted", "deleted": True})

    async def _deleted(self, rid: str, owner: records.Owner) -> bool:
        """Delete the response of a choice. Returns whether there was one that may be shown."""
        try:
            if not (await self._delivery.find(rid, owner)).response["store"]:
                return False
            await self._operations.delete(rid, owner)
        except delivery.NotFound:
            return False
        return True

    async def addressed(
        self, request: Request, scope: CredentialScope
    ) -> tuple[str, records.Owner]:
        """The id in the path, and who asks. Raises errors.ApiError."""
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        return request.path_params["completion_id"], owner

    async def _found(self, name: str, owner: records.Owner) -> list[delivery.Found]:
        """The responses of a completion that may be shown."""
        rids = chat_completions.response_ids(name, chat_api.MAX_CHOICES)
        if not rids:
            raise errors.completion_not_found(name)
        found = await _answered(name, [self._delivery.find(rid, owner) for rid in rids])
        if not all(each.response["store"] for each in found):
            raise errors.completion_not_found(name)
        return found


async def _answered(name: str, operations: Sequence[Awaitable[T]]) -> list[T]:
    """The results, or the first failure as the client is told it."""
    try:
        return await asyncio.gather(*operations)
    except delivery.NotFound as error:
        raise errors.completion_not_found(name) from error
    except error_mapping.DELIVERY_ERRORS as error:
        raise error_mapping.api_error(name, error) from error
