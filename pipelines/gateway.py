"""Requests to a gateway. Separates errors that can be retried from others.

Every request and every upload has an idempotency key, so a retry is free: the gateway returns the
response, or the file, of the first one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx

from pipelines import metrics
from pipelines.documents import Document

T = TypeVar("T")

_logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
# A response continues when this connection breaks; the next request with its key waits for it.
ANSWER_S: Final = 300.0
CONNECT_S: Final = 5.0
STORE_S: Final = 30.0  # for requests that need no model
# For how long an upload may be attached. A store copies what it needs, and uploads are limited.
UPLOAD_LIVES_S: Final = 3_600
PAGE: Final = 100
# The request is invalid, so a retry would fail too.
_FINAL: Final = frozenset({400, 404, 405, 409, 410, 413, 415, 422})
# Every row would have this error: the operator of the pipeline must act.
_OPERATORS: Final = frozenset(
    {
        *("model_not_found", "not_offered", "vector_store_not_found", "vector_store_expired"),
        "vector_store_limit_reached",
    }
)
# The gateway sends a pause, but other calls need not wait.
_OF_UPLOADS: Final = frozenset({"too_many_files"})
LOG_EVERY_S: Final = 10.0


class Rejected(Exception):
    """The gateway refuses this request. `param`: the invalid member, if the gateway names it."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class ModelResponse(NamedTuple):
    """A response that has ended. `status`: completed, incomplete, failed or cancelled; `code`: of
    its error, or the reason why it is incomplete; `index` of a citation: its place in `text`;
    `searched`: the gateway has searched vector stores."""

    response: str
    status: str
    text: str
    code: str
    model: str
    input_tokens: int
    output_tokens: int
    citations: tuple[dict[str, Any], ...] = ()
    searched: bool = False


class StoreFile(NamedTuple):
    """A file of a vector store. `status`: in_progress, completed, failed, cancelled, or `gone`: it
    was removed. `code` and `message` say why."""

    file: str
    status: str
    passages: int = 0
    code: str = ""
    message: str = ""


class Gateway:
    """One gateway, used by all rows of a runner.

    Attributes:
        _open_at: no request is sent before (monotonic seconds): a gateway requested a pause.
        _logged_at: time of the last log line about waiting requests (monotonic seconds).
    """

    def __init__(
        self,
        url: str,
        credential: Path,
        pipeline: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`credential`: a file, read again for each request: it may be renewed."""
        self._credential = credential
        self._pipeline = pipeline
        self._clock = clock
        self._sleep = sleep
        self._open_at = 0.0
        self._logged_at = -LOG_EVERY_S
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any], key: str) -> ModelResponse:
        """The response of this key. Waits without a time limit for a gateway that is away, a full
        pool or an expired credential.

        Raises:
            Rejected: the request is invalid.
        """
        return await self._request(
            _model_response,
            "POST",
            "/v1/responses",
            {"content-type": "application/json", "idempotency-key": key},
            content=json.dumps(body).encode(),
        )

    async def upload(self, document: Document, key: str) -> str:
        """The id of the file of this key; it may be attached for a while. Waits like `ask`.

        Raises:
            Rejected: the request is invalid.
        """
        return await self._request(
            lambda answer: str(answer["id"]),
            "POST",
            "/v1/files",
            {"idempotency-key": key},
            data={
                "purpose": "assistants",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": str(UPLOAD_LIVES_S),
            },
            files={"file": (document.filename, document.text, "text/plain")},
            timeout=STORE_S,
        )

    async def attach(self, store: str, file: str, attributes: Mapping[str, Any]) -> StoreFile:
        """Attach a file to a store, with these attributes. Waits like `ask`; raises Rejected."""
        return await self._request(
            _store_file,
            "POST",
            f"/v1/vector_stores/{store}/files",
            {"content-type": "application/json"},
            content=json.dumps({"file_id": file, "attributes": attributes}).encode(),
            timeout=STORE_S,
        )

    async def files_in_store(self, store: str, files: Collection[str]) -> dict[str, StoreFile]:
        """The state of these files of a store. One request finds the latest files. Waits like
        `ask`; raises Rejected."""
        by_id: dict[str, StoreFile] = {}
        params: dict[str, str | int] = {"limit": PAGE}
        path = f"/v1/vector_stores/{store}/files"
        while True:
            try:
                rows, last = await self._request(
                    _page, "GET", path, {}, params=params, timeout=STORE_S
                )
            except Rejected as error:
                if error.param != "after":
                    raise
                del params["after"]  # that file was taken out meanwhile
                continue
            by_id |= {each.file: each for each in rows if each.file in files}
            if last is None or len(by_id) == len(files):
                reason = "The file was taken out of the store."
                missing = StoreFile("", "gone", 0, "vector_store_file_not_found", reason)
                return {file: by_id.get(file, missing._replace(file=file)) for file in files}
            params["after"] = last

    async def _request(
        self,
        parse: Callable[[Any], T],
        method: str,
        path: str,
        headers: Mapping[str, str],
        **options: Any,
    ) -> T:
        """The result of `parse` for the JSON of the response."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._sleep(max(0.0, self._open_at - self._clock()))
            wait_s = 0.0
            try:
                answer = await self._http.request(
                    method,
                    path,
                    headers={"authorization": f"Bearer {self._token()}", **headers},
                    **options,
                )
                if answer.status_code == 200:
                    return _parse(parse, answer)
                code, message, param = _error(answer)
                if answer.status_code in _FINAL and code not in _OPERATORS:
                    raise Rejected(code, message, param)
                detail = f"{answer.status_code} {code}: {message}"
                wait_s = _retry_after_s(answer)
            except (httpx.HTTPError, OSError, _Unreadable) as error:
                code = type(error).__name__.strip("_")
                detail = f"{code}: {error}"
            self._log_wait(detail)
            metrics.WAITED.labels(pipeline=self._pipeline, reason=code).inc()
            if wait_s and code not in _OF_UPLOADS:
                self._open_at = max(self._open_at, self._clock() + wait_s)
            await self._sleep(max(wait_s, pause_s) * random.uniform(1.0, 1.3))
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)

    def _log_wait(self, detail: str) -> None:
        """Log why requests wait; rarely, because all rows have the same reason."""
        if self._clock() >= self._logged_at + LOG_EVERY_S:
            self._logged_at = self._clock()
            _logger.warning("%s: asking again: %s", self._pipeline, detail)

    def _token(self) -> str:
        return self._credential.read_text().strip()


class _Unreadable(Exception):
    """The response is not a gateway's; it may be from a proxy."""


def _parse(parse: Callable[[Any], T], answer: httpx.Response) -> T:
    try:
        return parse(answer.json())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _Unreadable(str(error)) from error


def _model_response(response: Any) -> ModelResponse:
    error, incomplete = response.get("error") or {}, response.get("incomplete_details") or {}
    usage = response.get("usage") or {}
    text, citations = "", []
    for item in response["output"]:
        for part in item["content"] if item["type"] == "message" else ():
            if part["type"] == "output_text":
                citations += _citations(part, len(text))
                text += part["text"]
    return ModelResponse(
        response["id"],
        response["status"],
        text,
        str(error.get("code") or incomplete.get("reason") or ""),
        response["model"],
        int(usage.get("input_tokens", 0)),
        int(usage.get("output_tokens", 0)),
        tuple(citations),
        any(item["type"] == "file_search_call" for item in response["output"]),
    )


def _citations(part: dict[str, Any], before: int) -> list[dict[str, Any]]:
    """The citations of a part of a text, which has `before` characters before it."""
    return [
        {
            "file_id": each["file_id"],
            "filename": each["filename"],
            "index": each["index"] + before,
        }
        for each in part.get("annotations") or ()
        if each["type"] == "file_citation"
    ]


def _store_file(file: Any) -> StoreFile:
    error = file.get("last_error") or {}
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    return StoreFile(file["id"], file["status"], int(file.get("passages") or 0), code, message)


def _page(answer: Any) -> tuple[list[StoreFile], str | None]:
    """The files, and the last one's id where there are more."""
    rows = [_store_file(each) for each in answer["data"]]
    return rows, rows[-1].file if rows and answer["has_more"] else None


def _error(answer: httpx.Response) -> tuple[str, str, str]:
    try:
        error = answer.json()["error"]
        code, message = str(error["code"] or answer.status_code), str(error["message"])[:1_000]
        return code, message, str(error.get("param") or "")
    except (AttributeError, KeyError, TypeError, ValueError):
        return f"http_{answer.status_code}", answer.text[:200], ""


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(600.0, max(0.0, float(answer.headers.get("retry-after", 0))))
    except ValueError:
        return 0.0
