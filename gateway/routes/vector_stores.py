"""The HTTP routes of vector stores."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.files import uploads
from gateway.load import admission, rate_limits
from gateway.parsing import file_text, json_body, vector_stores_api
from gateway.responses import log_answers
from gateway.retrieval import file_search, vector_stores
from gateway.retrieval.embedder import Embedder
from gateway.retrieval.passages import Passages
from gateway.routes import request_body, responses
from tailrace.auth.principal import CredentialScope
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, ids, records
from tailrace.protocol import vector_stores as acts
from tailrace.web import access

MAX_BODY_BYTES: Final = 262_144
LIST_USUAL: Final = 20
LIST_MOST: Final = 100

Json = dict[str, Any]


class VectorStoreRoutes:
    """OpenAI's Vector Stores API. Only its owner can use a store."""

    def __init__(
        self,
        gate: access.Access,
        stores: vector_stores.VectorStores,
        passages: Passages,
        files: uploads.Uploads,
        embedder: Embedder,
        searcher: file_search.Searcher,
        rates: rate_limits.RateLimiter,
        budget: kept_bytes.KeptBytes,
    ) -> None:
        self._gate = gate
        self._stores = stores
        self._passages = passages
        self._files = files
        self._embedder = embedder
        self._searcher = searcher
        self._rates = rates
        self._budget = budget

    async def create(self, request: Request) -> Response:
        """`POST /v1/vector_stores`."""
        owner = await self._owner(request, CredentialScope.CREATE)
        fields = vector_stores_api.parse_create(await self._body(request, owner))
        additions = [vector_stores_api.Addition(name, {}, fields.chunking) for name in fields.files]
        attachments = [await self._addition(owner, each, "file_ids") for each in additions]
        store = await log_answers.write(self._stores.create(owner, fields))
        for upload, addition in attachments:
            await log_answers.write(self._stores.attach(store, upload, addition))
        return self._store_response(await log_answers.write(self._stores.find(store.id, owner)))

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/vector_stores`: the newest first unless `order` is `asc`."""
        owner = await self._owner(request, CredentialScope.READ)
        stores = await log_answers.write(self._stores.all_of(owner))
        return _page(request, [_store(each, self._gate.clock()) for each in stores])

    async def show(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}`."""
        return self._store_response(await self._find(request, CredentialScope.READ))

    async def change(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}`."""
        store = await self._find(request, CredentialScope.CREATE)
        fields = vector_stores_api.parse_update(await self._body(request, store.owner))
        return self._store_response(await log_answers.write(self._stores.change(store, fields)))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}`: with its contents; the uploads stay."""
        store = await self._find(request, CredentialScope.CREATE)
        await log_answers.write(self._stores.delete(store))
        return JSONResponse(_deletion(store))

    async def delete_all(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores`: all stores of the caller; an extension."""
        owner = await self._owner(request, CredentialScope.CREATE)
        stores = await log_answers.write(self._stores.all_of(owner))
        for store in stores:
            await log_answers.write(self._stores.delete(store))
        return JSONResponse(
            {"object": "list", "data": [_deletion(each) for each in stores], "deleted": True}
        )

    async def search(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/search`."""
        self._gate.check_origin(request)
        principal = await self._gate.principal(request, CredentialScope.CREATE)
        store = await self._find_of(request, access.owner_of(principal))
        query = vector_stores_api.search(await self._body(request, store.owner))
        hits = await log_answers.write(self._searcher.hits([store], query, principal))
        rows = [
            {
                "file_id": hit.file,
                "filename": hit.filename,
                "score": hit.score,
                "attributes": hit.attributes,
                "content": [{"type": "text", "text": hit.text}],
            }
            for hit in hits
        ]
        return JSONResponse(
            {
                "object": "vector_store.search_results.page",
                "search_query": list(query.queries),
                "data": rows,
                "has_more": False,
                "next_page": None,
            }
        )

    # ---- files

    async def attach(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/files`."""
        store = await self._find(request, CredentialScope.CREATE)
        request_fields = vector_stores_api.parse_file(await self._body(request, store.owner))
        upload, addition = await self._addition(store.owner, request_fields, "file_id")
        file = await log_answers.write(self._stores.attach(store, upload, addition))
        return JSONResponse(_file(store, file))

    async def files(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files`."""
        store = await self._find(request, CredentialScope.READ)
        return _page(request, _files(request, store, list(store.present.values())))

    async def file(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}`."""
        store = await self._find(request, CredentialScope.READ)
        return JSONResponse(_file(store, _file_of(request, store)))

    async def describe(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/files/{file_id}`: other attributes."""
        store = await self._find(request, CredentialScope.CREATE)
        file = _file_of(request, store)
        attributes = vector_stores_api.parse_attributes(await self._body(request, store.owner))
        file_now = await log_answers.write(self._stores.describe(store, file, attributes))
        return JSONResponse(_file(store, file_now))

    async def detach(self, request: Request) -> Response:
        """`DELETE /v1/vector_stores/{id}/files/{file_id}`: out of the store; the upload stays."""
        store = await self._find(request, CredentialScope.CREATE)
        file = _file_of(request, store)
        await log_answers.write(self._stores.detach(store, file))
        return JSONResponse(
            {"id": file.act.file, "object": "vector_store.file.deleted", "deleted": True}
        )

    async def content(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/files/{file_id}/content`: the texts of its passages."""
        store = await self._find(request, CredentialScope.READ)
        file = _file_of(request, store)
        texts: list[str] = []
        if file.status == "completed":
            texts = await log_answers.write(self._passages.texts(store, file.act.attachment))
        return JSONResponse(
            {
                "object": "vector_store.file_content.page",
                "file_id": file.act.file,
                "filename": file.act.filename,
                "attributes": file.attributes,
                "data": [{"type": "text", "text": text} for text in texts],
                "has_more": False,
                "next_page": None,
            }
        )

    # ---- batches: files added by one call

    async def attach_batch(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/file_batches`."""
        store = await self._find(request, CredentialScope.CREATE)
        additions = vector_stores_api.parse_batch(await self._body(request, store.owner))
        attachments = [await self._addition(store.owner, each, "file_ids") for each in additions]
        batch = acts.BATCH_PREFIX + os.urandom(ids.RANDOM_BYTES).hex()
        files = [
            await log_answers.write(self._stores.attach(store, upload, addition, batch))
            for upload, addition in attachments
        ]
        return JSONResponse(_batch(store, batch, files))

    async def batch(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/file_batches/{batch_id}`."""
        store = await self._find(request, CredentialScope.READ)
        return JSONResponse(_batch(store, *_batch_of(request, store)))

    async def cancel_batch(self, request: Request) -> Response:
        """`POST /v1/vector_stores/{id}/file_batches/{batch_id}/cancel`."""
        store = await self._find(request, CredentialScope.CREATE)
        _, files = _batch_of(request, store)
        for each in files:
            if each.status == "in_progress":
                await log_answers.write(self._stores.progress(store, each, status="cancelled"))
        store_now = await log_answers.write(self._stores.find(store.id, store.owner))
        return JSONResponse(_batch(store_now, *_batch_of(request, store_now)))

    async def batch_files(self, request: Request) -> Response:
        """`GET /v1/vector_stores/{id}/file_batches/{batch_id}/files`."""
        store = await self._find(request, CredentialScope.READ)
        _, files = _batch_of(request, store)
        return _page(request, _files(request, store, files))

    async def _addition(
        self, owner: records.Owner, addition: vector_stores_api.Addition, where: str
    ) -> tuple[records.Upload, vector_stores_api.Addition]:
        """The upload to add, and its chunking for the deployment's model.

        Raises:
            errors.ApiError: 400, there is no such file, or it has no text.
        """
        upload = await log_answers.write(self._files.find(addition.file, owner))
        if upload is None:
            raise errors.file_unknown(addition.file, where)
        file_text.check(upload.filename, not upload.width, where)
        chunking = addition.chunking.fitting(self._embedder.longest)
        return upload, vector_stores_api.Addition(addition.file, addition.attributes, chunking)

    def _store_response(self, store: acts.Store) -> Response:
        return JSONResponse(_store(store, self._gate.clock()))

    async def _find(self, request: Request, scope: CredentialScope) -> acts.Store:
        return await self._find_of(request, await self._owner(request, scope))

    async def _find_of(self, request: Request, owner: records.Owner) -> acts.Store:
        return await log_answers.write(self._stores.find(request.path_params["store_id"], owner))

    async def _owner(self, request: Request, scope: CredentialScope) -> records.Owner:
        self._gate.check_origin(request)
        owner = access.owner_of(await self._gate.principal(request, scope))
        if scope is CredentialScope.CREATE:  # what is written is stored forever
            await self._rates.charge_request(owner.key)
        return owner

    async def _body(self, request: Request, owner: records.Owner) -> json_body.Body:
        with self._budget.account(owner.key) as account:
            raw = await request_body.receive(request, MAX_BODY_BYTES, account)
            charge = rate_limits.Charge(owner.key)
            await self._rates.charge_tokens(charge, len(raw) / admission.CHARS_PER_TOKEN_GUESS)
            return await asyncio.to_thread(json_body.decode, raw) if raw else {}


def _page(request: Request, rows: list[Json]) -> Response:
    query = request.query_params
    before = query.get("before")
    if before is not None:
        place = next((i for i, row in enumerate(rows) if row["id"] == before), None)
        if place is None:
            raise errors.invalid_value("before", "Invalid 'before': no such item.")
        # `rows` are oldest first, so the rows before it in the answer depend on the order.
        rows = rows[:place] if query.get("order") == "asc" else rows[place + 1 :]
    return JSONResponse(
        responses.list_page(
            rows,
            query.get("limit"),
            query.get("order") or "desc",
            query.get("after"),
            usual=LIST_USUAL,
            most=LIST_MOST,
        )
    )


def _file_of(request: Request, store: acts.Store) -> acts.File:
    name = request.path_params["file_id"]
    file = store.present.get(name)
    if file is None:
        raise errors.vector_store_file_not_found(name)
    return file


def _batch_of(request: Request, store: acts.Store) -> tuple[str, list[acts.File]]:
    name = request.path_params["batch_id"]
    files = [each for each in store.present.values() if name and each.act.batch == name]
    if not files:
        raise errors.vector_store_file_not_found(name)
    return name, files


def _files(request: Request, store: acts.Store, files: list[acts.File]) -> list[Json]:
    status = request.query_params.get("filter")
    if status not in (None, "in_progress", "completed", "failed", "cancelled"):
        raise errors.invalid_value(
            "filter",
            "Invalid 'filter': expected 'in_progress', 'completed', 'failed' or 'cancelled'.",
        )
    return [_file(store, each) for each in files if status in (None, each.status)]


def _counts(files: list[acts.File]) -> dict[str, int]:
    counts = dict.fromkeys(("in_progress", "completed", "failed", "cancelled"), 0)
    for each in files:
        counts[each.status] += 1
    return {**counts, "total": len(files)}


def _store(store: acts.Store, now: float) -> Json:
    expired = store.expired(now)
    files = [] if expired else list(store.present.values())
    counts = _counts(files)
    status = "expired" if expired else "in_progress" if counts["in_progress"] else "completed"
    days = {"anchor": "last_active_at", "days": store.days}
    return {
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created,
        "name": store.name,
        "description": store.description or None,
        "usage_bytes": sum(each.bytes for each in files),
        "file_counts": counts,
        "status": status,
        "expires_after": days if store.days else None,
        "expires_at": store.expires,
        "last_active_at": store.used,
        "metadata": store.metadata,
    }


def _deletion(store: acts.Store) -> Json:
    return {"id": store.id, "object": "vector_store.deleted", "deleted": True}


def _file(store: acts.Store, file: acts.File) -> Json:
    progress = file.progress
    failed = progress is not None and progress.status == "failed"
    return {
        "id": file.act.file,
        "object": "vector_store.file",
        "created_at": file.act.created,
        "vector_store_id": store.id,
        "status": file.status,
        "last_error": {"code": progress.code, "message": progress.message}
        if failed and progress is not None
        else None,
        "usage_bytes": file.bytes,
        "passages": file.passages,
        "attributes": file.attributes,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": file.act.size,
                "chunk_overlap_tokens": file.act.overlap,
            },
        },
    }


def _batch(store: acts.Store, name: str, files: list[acts.File]) -> Json:
    counts = _counts(files)
    status = "completed"
    if counts["in_progress"]:
        status = "in_progress"
    elif counts["cancelled"]:
        status = "cancelled"
    elif counts["failed"] == len(files):
        status = "failed"
    return {
        "id": name,
        "object": "vector_store.files_batch",
        "created_at": min(each.act.created for each in files),
        "vector_store_id": store.id,
        "status": status,
        "file_counts": counts,
    }
