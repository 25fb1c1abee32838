"""`/v1/files`: files that clients upload and reference in requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.files import uploads as gateway_uploads
from gateway.parsing import command, multipart, uploads
from gateway.routes import large_bodies, request_body, responses
from tailrace import log
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, records
from tailrace.web import access

MAX_LISTED: Final = 10_000


class FileRoutes:
    """The endpoints. Only its owner can use a file."""

    def __init__(
        self,
        gate: access.Access,
        budget: kept_bytes.KeptBytes,
        large: large_bodies.LargeBodies,
        files: gateway_uploads.Uploads,
    ) -> None:
        self._gate = gate
        self._budget = budget
        self._large = large
        self._files = files

    async def create(self, request: Request) -> Response:
        """`POST /v1/files`: a form with `file`, `purpose` and optionally `expires_after`. With an
        `Idempotency-Key` it may be retried."""
        principal = await self._principal(request, CredentialScope.CREATE)
        owner = access.owner_of(principal)
        with self._budget.account(principal.key) as account:
            body = await request_body.receive(request, uploads.MAX_FORM_BYTES, account)
            key = idempotency_key(request)
            large = len(body) > request_body.LARGE_BYTES
            async with self._large.turn() if large else contextlib.nullcontext():
                upload = await asyncio.to_thread(
                    _parse, request.headers.get("content-type", ""), body
                )
                with _log_errors():
                    record = await self._files.add(owner, upload, key)
        return JSONResponse(_as_json(record))

    async def show(self, request: Request) -> Response:
        """`GET /v1/files/{id}`."""
        owner = await self._owner(request, CredentialScope.READ)
        return JSONResponse(_as_json(await self._record(request, owner)))

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/{id}/content`: the bytes, as an attachment that no browser shows."""
        owner = await self._owner(request, CredentialScope.READ)
        record = await self._record(request, owner)
        try:
            with _log_errors():
                data = await self._files.content(record)
        except log.HistoryLost as error:
            raise errors.file_not_found(record.id) from error
        name = quote(record.filename)
        return Response(
            data,
            media_type="application/octet-stream",
            headers={
                "content-disposition": f"attachment; filename*=UTF-8''{name}",
                "x-content-type-options": "nosniff",
            },
        )

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/files`: the caller's own, the newest first unless `order` is `asc`."""
        owner = await self._owner(request, CredentialScope.READ)
        query = request.query_params
        purpose = query.get("purpose")
        with _log_errors():
            uploads_of_owner = await self._files.all_of(owner)
        rows = [
            _as_json(each)
            for each in uploads_of_owner
            if purpose is None or each.purpose == purpose
        ]
        return JSONResponse(
            responses.list_page(
                rows,
                query.get("limit"),
                query.get("order") or "desc",
                query.get("after"),
                usual=MAX_LISTED,
                most=MAX_LISTED,
            )
        )

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/files/{id}`."""
        owner = await self._owner(request, CredentialScope.CREATE)
        record = await self._record(request, owner)
        with _log_errors():
            await self._files.delete(record)
        return JSONResponse({"id": record.id, "object": "file", "deleted": True})

    async def _owner(self, request: Request, scope: CredentialScope) -> records.Owner:
        return access.owner_of(await self._principal(request, scope))

    async def _principal(self, request: Request, scope: CredentialScope) -> Principal:
        self._gate.check_origin(request)
        principal = await self._gate.principal(request, scope)
        if scope is CredentialScope.CREATE:
            self._gate.rates.read(principal)  # no tokens are charged
        return principal

    async def _record(self, request: Request, owner: records.Owner) -> records.Upload:
        file_id = request.path_params["file_id"]
        with _log_errors():
            record = await self._files.find(file_id, owner)
        if record is None:
            raise errors.file_not_found(file_id)
        return record


def idempotency_key(request: Request) -> str | None:
    """The key of the header, if any. Raises errors.ApiError: it is too long."""
    key = request.headers.get("idempotency-key")
    return command.checked_key(key) if key else None


@contextlib.contextmanager
def _log_errors() -> Iterator[None]:
    """Raise 503 where the log does not answer."""
    try:
        yield
    except (log.LogUnavailable, log.AppendFailed) as error:
        raise errors.unavailable("The log cannot be used right now.") from error


def _parse(content_type: str, body: bytearray) -> uploads.UploadForm:
    form = multipart.parse(content_type, body, uploads.FILE)
    body.clear()
    return uploads.parse(form)


def _as_json(record: records.Upload) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.file.bytes,
        "created_at": record.created,
        "expires_at": record.expires,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }
