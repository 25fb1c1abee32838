"""The admin API of links to conversations: list and end those of one user.

Their owner may be gone: links outlive the credentials of a user, and every credential of one that
was revoked. An administrator acts within the issuer of their own credential, and within its tenant
if it has one.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.conversations import share_links
from gateway.responses import log_answers
from tailrace.auth.principal import CredentialScope
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, records
from tailrace.web import access

MAX_NAME_CHARS = 255


class AdminShareRoutes:
    """`/v1/admin/shares?subject=…&tenant=…`. Its answers hold no token and no title."""

    def __init__(self, gate: access.Access, links: share_links.ShareLinks) -> None:
        self._gate = gate
        self._links = links

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/admin/shares`: the valid links of a user."""
        live = await log_answers.read(self._links.of_owner(await self._owner(request)))
        return JSONResponse({"object": "list", "data": [_as_json(*each) for each in live]})

    async def end_all(self, request: Request) -> Response:
        """`DELETE /v1/admin/shares`: none of them shows anything from now on."""
        owner = await self._owner(request)
        live = await log_answers.read(self._links.of_owner(owner))
        return await self._end(owner, [(name, share) for name, share, _ in live])

    async def end(self, request: Request) -> Response:
        """`DELETE /v1/admin/shares/{share_id}`: this one of them."""
        owner, wanted = await self._owner(request), request.path_params["share_id"]
        live = await log_answers.read(self._links.of_owner(owner))
        found = [(name, share) for name, share, _ in live if share == wanted]
        if not found:
            raise errors.share_not_found()
        return await self._end(owner, found)

    async def _end(self, owner: records.Owner, links: list[tuple[str, str]]) -> Response:
        await log_answers.write(self._links.end(owner, links))
        rows = [
            {"id": share, "object": "conversation.share.deleted", "deleted": True}
            for _, share in links
        ]
        return JSONResponse({"object": "list", "data": rows})

    async def _owner(self, request: Request) -> records.Owner:
        """The user whom the query names.

        Raises:
            errors.ApiError: 400, 401, 403, 404 (the deployment has no links).
        """
        admin = await self._gate.principal(request, CredentialScope.ADMIN)
        self._links.check(request.url.path)
        query = request.query_params
        if not query.get("subject"):
            raise errors.missing_required_parameter("subject")
        for name in ("subject", "tenant"):
            if len(query.get(name, "")) > MAX_NAME_CHARS:
                raise errors.invalid_type(name, f"a text of 1 to {MAX_NAME_CHARS} characters")
        tenant = query.get("tenant") or None
        if admin.tenant is not None and tenant not in (None, admin.tenant):
            raise errors.forbidden_tenant()
        return records.Owner(admin.issuer, query["subject"], tenant or admin.tenant or "")


def _as_json(name: str, share: str, record: tree.Share) -> dict[str, Any]:
    return {
        "id": share,
        "object": "conversation.share",
        "conversation_id": name,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
    }
