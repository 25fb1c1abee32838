"""`/v1/session`: a browser signs in, signs out, and reads its identity."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.routes import request_body
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.web import access, session_cookie

MAX_BODY_BYTES: Final = 16 * 1024
NO_STORE: Final = {"cache-control": "no-store"}


class SessionRoutes:
    """The three endpoints. They are for pages of this gateway's own origin."""

    def __init__(self, gate: access.Access, cookies: session_cookie.SessionCookies) -> None:
        self._gate = gate
        self._cookies = cookies

    async def begin(self, request: Request) -> Response:
        """`POST /v1/session`: the credential in the body becomes a session.

        A JSON body cannot come from another site's form, and pages of listed origins are refused.
        So a page of another origin cannot sign a user in.
        """
        self._gate.check_same_origin(request)
        body = await _body(request)
        credential = body.get("credential")
        if not isinstance(credential, str):
            raise errors.invalid_type("credential", "a text")
        principal = await self._gate.credential(request, credential)
        self._gate.permit(principal)
        value = self._cookies.seal(principal)
        response = JSONResponse(_as_json(principal, self._cookies.token(value)), headers=NO_STORE)
        self._cookies.set(response, request, value, principal.expires_at - self._gate.clock())
        return response

    async def show(self, request: Request) -> Response:
        """`GET /v1/session`: the caller's identity; `subject` is null for a browser without a
        session.

        This is not an error, because every visit of the page begins with this request.
        """
        self._gate.check_same_origin(request)
        value = self._cookies.value(request)
        try:
            principal = await self._gate.principal(request)
        except errors.ApiError as error:
            if error.status != 401 or "authorization" in request.headers:
                raise
            return JSONResponse({"object": "session", "subject": None}, headers=NO_STORE)
        token = self._cookies.token(value) if value is not None else None
        return JSONResponse(_as_json(principal, token), headers=NO_STORE)

    async def end(self, request: Request) -> Response:
        """`DELETE /v1/session`. It needs no valid session: a signed-out user stays signed out."""
        self._gate.check_same_origin(request)
        value = self._cookies.value(request)
        if value is not None and not self._cookies.shows_token(request, value):
            raise errors.session_token_missing()
        response = JSONResponse({"object": "session", "deleted": True}, headers=NO_STORE)
        self._cookies.clear(response, request)
        return response


def _as_json(principal: Principal, token: str | None) -> dict[str, Any]:
    return {
        "object": "session",
        "issuer": principal.issuer,
        "subject": principal.subject,
        "tenant": principal.tenant,
        "scopes": sorted(principal.scopes),
        "expires_at": principal.expires_at,
        "token": token,
    }


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise errors.invalid_request("The body must be JSON.", code="invalid_type")
    return await request_body.read(request, MAX_BODY_BYTES)
