"""The search over a principal's own conversations."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.load import rate_limits
from gateway.routes import conversations as conversation_routes
from gateway.routes.responses import limit_of
from tailrace.archive.archived import Match, UnknownPlace
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import archived
from tailrace.protocol import conversations, errors, ids
from tailrace.web import access, encoded_json, error_mapping

MAX_CHARACTERS: Final = 256  # of a query


class SearchRoutes:
    """An extension: finds conversations by the words of their titles and messages."""

    def __init__(
        self, gate: access.Access, archive: archived.ArchiveQueries, rates: rate_limits.RateLimiter
    ) -> None:
        self._gate = gate
        self._archive = archive
        self._rates = rates

    async def search(self, request: Request) -> Response:
        """`GET /v1/conversations/search`: the last changed conversation first."""
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, CredentialScope.READ))
        query = request.query_params
        words, limit = _words(query.get("q")), limit_of(query.get("limit"))
        after = _after(query.get("after"))
        self._archive.require("searches")
        await self._rates.charge_request(owner.key)  # it costs more than other look-ups
        try:
            matches = await self._archive.search(owner, words, after, limit)
        except UnknownPlace as error:
            raise _no_such_place() from error
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(None, error) from error
        body = {
            "object": "list",
            "data": [_as_json(match) for match in matches[:limit]],
            "has_more": len(matches) > limit,
        }
        return encoded_json.EncodedJSON(body)


def _words(text: str | None) -> str:
    if not text:
        raise errors.missing_required_parameter("q")
    if len(text) > MAX_CHARACTERS:
        raise errors.invalid_value(
            "q", f"Invalid 'q': expected at most {MAX_CHARACTERS} characters."
        )
    return text


def _after(name: str | None) -> str | None:
    if name is not None:
        try:
            ids.parse(name, conversations.PARTITIONS, conversations.PREFIX)
        except ids.InvalidId as error:
            raise _no_such_place() from error
    return name


def _no_such_place() -> errors.ApiError:
    return errors.invalid_value("after", "Invalid 'after': no such conversation.")


def _as_json(match: Match) -> dict[str, Any]:
    return {
        "object": "conversation.match",
        "conversation": conversation_routes.as_json(match.conversation),
        "response_id": match.response,
        "snippet": match.snippet,
        "ranges": match.ranges,
    }
