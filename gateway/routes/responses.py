"""The HTTP routes that change or list an existing response."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.responses import response_operations
from tailrace.auth.principal import CredentialScope
from tailrace.protocol import errors, records
from tailrace.web import access, encoded_json, error_mapping

LIST_LIMIT: Final = 20
LIST_MOST: Final = 100

T = TypeVar("T")


class ResponseRoutes:
    """Cancel, delete, input items."""

    def __init__(
        self, gate: access.Access, operations: response_operations.ResponseOperations
    ) -> None:
        self._gate = gate
        self._operations = operations

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`."""
        rid, owner = await self._address(request, CredentialScope.CREATE)
        response = await _call(rid, self._operations.cancel(rid, owner))
        return encoded_json.EncodedJSON(response)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`."""
        rid, owner = await self._address(request, CredentialScope.CREATE)
        await _call(rid, self._operations.delete(rid, owner))
        return JSONResponse({"id": rid, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        rid, owner = await self._address(request, CredentialScope.READ)
        query = request.query_params
        items = await _call(rid, self._operations.input_items(rid, owner))
        return JSONResponse(
            list_page(items, query.get("limit"), query.get("order"), query.get("after"))
        )

    async def _address(self, request: Request, scope: CredentialScope) -> tuple[str, records.Owner]:
        owner = access.owner_of(await self._gate.principal(request, scope))
        return request.path_params["response_id"], owner


async def _call(rid: str, operation: Awaitable[T]) -> T:
    """The operation's result. Raises its failure as an API error."""
    try:
        return await operation
    except error_mapping.DELIVERY_ERRORS as error:
        raise error_mapping.api_error(rid, error) from error


def list_page(
    items: list[dict[str, Any]],
    limit: str | None,
    order: str | None,
    after: str | None,
    *,
    usual: int = LIST_LIMIT,
    most: int = LIST_MOST,
) -> dict[str, Any]:
    """One page of a list; `items` are oldest first. `usual`: the number without a `limit`.

    Raises:
        errors.ApiError
    """
    if order not in (None, "asc", "desc"):
        raise errors.invalid_value("order", "Invalid 'order': expected 'asc' or 'desc'.")
    if limit is not None and not (
        limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= most
    ):
        raise errors.out_of_range("limit", 1, most)
    rows = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((i for i, item in enumerate(rows) if item["id"] == after), None)
        if place is None:
            raise errors.invalid_value("after", "Invalid 'after': no such item.")
        rows = rows[place + 1 :]
    page = rows[: int(limit) if limit is not None else usual]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(rows) > len(page),
    }


def limit_of(text: str | None) -> int:
    """The `limit` of a list. Raises ApiError."""
    if text is None:
        return LIST_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= LIST_MOST):
        raise errors.out_of_range("limit", 1, LIST_MOST)
    return int(text)
