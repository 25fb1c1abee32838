"""The HTTP routes of links to conversations."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.conversations import share_links
from gateway.load import rate_limits
from gateway.parsing import json_body, shares_api
from gateway.responses import log_answers
from gateway.routes import request_body
from tailrace.auth.principal import CredentialScope
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, records, share_tokens
from tailrace.web import access, encoded_json, error_mapping

MAX_BODY_BYTES: Final = 4096
# Concurrent public reads. Each uses look-ups of the owner.
READING: Final = 16
RETRY_AFTER_S: Final = 1.0
# The content of a link is for its holders: not for caches, search engines and other sites.
PRIVATE: Final = {
    "cache-control": "no-store",
    "x-robots-tag": "noindex",
    "referrer-policy": "no-referrer",
}

Json = dict[str, Any]


class ShareRoutes:
    """An extension: links that show a conversation without a credential.

    Attributes:
        _reading: number of links that are being read.
    """

    def __init__(
        self,
        gate: access.Access,
        links: share_links.ShareLinks,
        rates: rate_limits.RateLimiter,
    ) -> None:
        self._gate = gate
        self._links = links
        self._rates = rates
        self._reading = 0

    async def create(self, request: Request) -> Response:
        """`POST /v1/conversations/{id}/share`."""
        owner, name, tokens = await self._authorize(request, CredentialScope.CREATE)
        await self._rates.charge_request(owner.key)  # what is written is stored for long
        raw = await request_body.receive(request, MAX_BODY_BYTES)
        seconds = shares_api.seconds(json_body.decode(raw) if raw else {})
        share, record = await log_answers.write(self._links.create(name, owner, seconds))
        return encoded_json.EncodedJSON(_as_json(tokens, owner, name, share, record))

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/conversations/{id}/shares`: its valid links, newest first."""
        owner, name, tokens = await self._authorize(request, CredentialScope.READ)
        live = await log_answers.read(self._links.live(name, owner))
        rows = [_as_json(tokens, owner, name, share, each) for share, each in live.items()]
        return encoded_json.EncodedJSON({"object": "list", "data": rows, "has_more": False})

    async def revoke(self, request: Request) -> Response:
        """`DELETE /v1/conversations/{id}/shares/{share_id}`."""
        owner, name, _ = await self._authorize(request, CredentialScope.CREATE)
        await self._rates.charge_request(owner.key)
        share = request.path_params["share_id"]
        await log_answers.write(self._links.revoke(name, owner, share))
        body = {"id": share, "object": "conversation.share.deleted", "deleted": True}
        return encoded_json.EncodedJSON(body)

    async def show(self, request: Request) -> Response:
        """`GET /v1/shared/{token}`: without a credential. The error is the same for a link that
        never existed, was revoked, has expired, or whose conversation was deleted."""
        response: Response
        try:
            response = encoded_json.EncodedJSON(await self._page(request))
        except errors.ApiError as error:
            response = error_mapping.error_response(error)
        response.headers.update(PRIVATE)
        return response

    async def _page(self, request: Request) -> Json:
        self._gate.rates.visit(request)
        start = shares_api.start(request.query_params.get("after"))
        link = self._link(request.path_params["token"])
        if self._reading >= READING:
            raise errors.overloaded(RETRY_AFTER_S)
        self._reading += 1
        try:
            page = await log_answers.read(self._links.read(link, start))
        finally:
            self._reading -= 1
        share = page.share
        return {
            "object": "conversation.shared",
            "title": share.title or None,
            "created_at": share.created_at,
            "expires_at": share.expires_at,
            "data": page.items,
            "has_more": page.next is not None,
            "next": page.next,
        }

    def _link(self, token: str) -> share_tokens.Link:
        tokens = self._links.check("/v1/shared")
        try:
            link = tokens.open(token)
        except share_tokens.InvalidToken as error:
            raise errors.share_not_found() from error
        if not self._gate.keys.knows(link.owner.issuer):  # its issuer was removed meanwhile
            raise errors.share_not_found()
        return link

    async def _authorize(
        self, request: Request, scope: CredentialScope
    ) -> tuple[records.Owner, str, share_tokens.Tokens]:
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        name = request.path_params["conversation_id"]
        return owner, name, self._links.check("/v1/conversations/{id}/share")


def _as_json(
    tokens: share_tokens.Tokens, owner: records.Owner, name: str, share: str, record: tree.Share
) -> Json:
    token = tokens.seal(share_tokens.Link(owner, name, share, record.head, record.expires_at))
    return {
        "id": share,
        "object": "conversation.share",
        "conversation_id": name,
        "title": record.title or None,
        "head": record.head,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "token": token,
        "url_path": f"{share_tokens.PATH}{token}",
    }
