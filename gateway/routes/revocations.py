"""The admin API of revocations: revoke credentials, list revocations, lift them.

An administrator acts within the issuer of their own credential, and within its tenant if it has
one. A person with access to the log uses `tailrace revoke`, which has no such bounds.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.responses import log_answers
from gateway.routes import request_body
from tailrace import log, telemetry
from tailrace.auth import revocation_list
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery.revocations import Revocations
from tailrace.log import interfaces
from tailrace.protocol import errors, records, topics
from tailrace.web import access

MAX_BODY_BYTES: Final = 4096
# Above it, `tailrace revoke` still works. A tenant is one entry, however many users it has.
MAX_REVOCATIONS: Final = 100_000
_NAMES: Final = ("subject", "tenant", "credential")


class RevocationRoutes:
    """`/v1/admin/revocations`."""

    def __init__(
        self, gate: access.Access, revocations: Revocations, writer: interfaces.RecordWriter
    ) -> None:
        self._gate = gate
        self._revocations = revocations
        self._writer = writer

    async def create(self, request: Request) -> Response:
        """`POST /v1/admin/revocations`: credentials that match the body are refused from now on."""
        admin = await self._gate.principal(request, CredentialScope.ADMIN)
        if len(self._revocations.known) >= MAX_REVOCATIONS:
            raise errors.overloaded(60.0)
        record = _parse(await request_body.read(request, MAX_BODY_BYTES), admin, self._gate.clock())
        await self._append(record)
        return JSONResponse(_as_json(record), 201)

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/admin/revocations`."""
        admin = await self._gate.principal(request, CredentialScope.ADMIN)
        await log_answers.read(self._revocations.caught_up())
        rows = [_as_json(each) for each in self._revocations.known if _may(admin, each)]
        return JSONResponse({"object": "list", "data": rows})

    async def lift(self, request: Request) -> Response:
        """`DELETE /v1/admin/revocations/{id}`."""
        admin = await self._gate.principal(request, CredentialScope.ADMIN)
        await log_answers.read(self._revocations.caught_up())
        revocation_id = request.path_params["revocation_id"]
        record = self._revocations.known.get(revocation_id)
        if record is None or not _may(admin, record):
            raise errors.not_found(request.url.path)
        await self._append(msgspec.structs.replace(record, lifted=True, by=admin.key))
        return JSONResponse({"id": record.id, "object": "revocation", "lifted": True})

    async def _append(self, record: records.Revoked) -> None:
        """Append, and wait until this instance applies it. Others follow within a moment."""
        try:
            await self._writer.append(
                topics.REVOCATIONS,
                0,
                record.id,
                records.encode(record),
                telemetry.trace_headers(),
            )
            await self._revocations.caught_up()
        except log.LogUnavailable as error:
            raise errors.unavailable(
                "The log does not answer. Whether it holds the change is unknown; list the "
                "revocations to see."
            ) from error


def _may(admin: Principal, record: records.Revoked) -> bool:
    return record.issuer == admin.issuer and admin.tenant in (None, record.tenant)


def _parse(body: dict[str, Any], admin: Principal, now: float) -> records.Revoked:
    """The revocation record of the body.

    Raises:
        errors.ApiError: 400, or 403 for another tenant.
    """
    for name in body:
        if name not in (*_NAMES, "for_s"):
            raise errors.unsupported_parameter(name)
    subject, tenant, credential = (_name(body, name) for name in _NAMES)
    if subject is None and tenant is None and credential is None:
        raise errors.missing_required_parameter("subject")
    if admin.tenant is not None:
        if tenant not in (None, admin.tenant):
            raise errors.forbidden_tenant()
        tenant = admin.tenant
    ahead = body.get("for_s", 0)
    if not isinstance(ahead, int | float) or isinstance(ahead, bool) or not math.isfinite(ahead):
        raise errors.invalid_type("for_s", "a number of seconds")
    if not 0 <= ahead <= revocation_list.MAX_AHEAD_S:
        raise errors.out_of_range("for_s", 0, revocation_list.MAX_AHEAD_S)
    return records.Revoked(
        secrets.token_hex(8),
        admin.issuer,
        revocation_list.issued_until(now, ahead),
        subject=subject,
        tenant=tenant,
        credential=credential,
        by=admin.key,
    )


def _name(body: dict[str, Any], field: str) -> str | None:
    value = body.get(field)
    if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= 255):
        raise errors.invalid_type(field, "a text of 1 to 255 characters")
    return value


def _as_json(record: records.Revoked) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "revocation",
        "issuer": record.issuer,
        "subject": record.subject,
        "tenant": record.tenant,
        "credential": record.credential,
        "issued_until": record.issued_until,
        "expires_at": revocation_list.expires_at(record),
        "by": record.by,
    }
