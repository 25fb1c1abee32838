"""Asks a gateway, and tells what can be tried again from what cannot.

Every question has an idempotency key, so asking again is free: the gateway leads it to the response
that the first one made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx

from pipelines import metrics

_logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 30.0
# A response runs on where this connection breaks; the next question with its key waits for it.
ANSWER_S: Final = 300.0
CONNECT_S: Final = 5.0
# The request is at fault, so that asking again would change nothing.
_FINAL: Final = frozenset({400, 404, 405, 409, 410, 413, 415, 422})
# Every row would have this error: the operator of the pipeline has to act.
_OPERATORS: Final = frozenset({"model_not_found"})
TELL_EVERY_S: Final = 10.0


class Rejected(Exception):
    """The gateway will not answer this request."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Ended(NamedTuple):
    """A response that has ended. `status`: completed, incomplete, failed or cancelled; `code`: of
    its error, or the reason why it is incomplete."""

    response: str
    status: str
    text: str
    code: str
    model: str
    input_tokens: int
    output_tokens: int


class Gateway:
    """One gateway, asked by all rows of a runner.

    Attributes:
        _open_at: no question is sent before (monotonic seconds): a gateway said how long to wait.
        _told_at: when the log was told last that something waits (monotonic seconds).
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
        """`credential`: a file, read again for each question: what mounts it may renew it."""
        self._credential = credential
        self._pipeline = pipeline
        self._clock = clock
        self._sleep = sleep
        self._open_at = 0.0
        self._told_at = -TELL_EVERY_S
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, body: Mapping[str, Any], key: str) -> Ended:
        """The response that this key leads to. Waits for as long as it takes: a gateway that is
        away, a full pool, a credential that has expired.

        Raises:
            Rejected: the request is at fault.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            await self._sleep(max(0.0, self._open_at - self._clock()))
            told_s = 0.0
            try:
                answer = await self._http.post(
                    "/v1/responses",
                    content=json.dumps(body).encode(),
                    headers={
                        "authorization": f"Bearer {self._token()}",
                        "content-type": "application/json",
                        "idempotency-key": key,
                    },
                )
                if answer.status_code == 200:
                    return _ended(answer)
                code, message = _error(answer)
                if answer.status_code in _FINAL and code not in _OPERATORS:
                    raise Rejected(code, message)
                detail = f"{answer.status_code} {code}: {message}"
                told_s = _retry_after_s(answer)
            except (httpx.HTTPError, OSError, _Unreadable) as error:
                code = type(error).__name__.strip("_")
                detail = f"{code}: {error}"
            self._tell(detail)
            metrics.WAITED.labels(pipeline=self._pipeline, reason=code).inc()
            if told_s:
                self._open_at = max(self._open_at, self._clock() + told_s)
            await self._sleep(max(told_s, pause_s) * random.uniform(1.0, 1.3))
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)

    def _tell(self, detail: str) -> None:
        """Why questions wait: a line now and then, because all rows have the same reason."""
        if self._clock() >= self._told_at + TELL_EVERY_S:
            self._told_at = self._clock()
            _logger.warning("%s: asking again: %s", self._pipeline, detail)

    def _token(self) -> str:
        return self._credential.read_text().strip()


class _Unreadable(Exception):
    """The answer is none of a gateway's: a proxy in between may have spoken."""


def _ended(answer: httpx.Response) -> Ended:
    try:
        response = answer.json()
        error, incomplete = response.get("error") or {}, response.get("incomplete_details") or {}
        usage = response.get("usage") or {}
        texts = [
            part["text"]
            for item in response["output"]
            if item["type"] == "message"
            for part in item["content"]
            if part["type"] == "output_text"
        ]
        return Ended(
            response["id"],
            response["status"],
            "".join(texts),
            str(error.get("code") or incomplete.get("reason") or ""),
            response["model"],
            int(usage.get("input_tokens", 0)),
            int(usage.get("output_tokens", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _Unreadable(str(error)) from error


def _error(answer: httpx.Response) -> tuple[str, str]:
    try:
        error = answer.json()["error"]
        return str(error["code"] or answer.status_code), str(error["message"])[:1_000]
    except (KeyError, TypeError, ValueError):
        return f"http_{answer.status_code}", answer.text[:200]


def _retry_after_s(answer: httpx.Response) -> float:
    try:
        return min(600.0, max(0.0, float(answer.headers.get("retry-after", 0))))
    except ValueError:
        return 0.0
