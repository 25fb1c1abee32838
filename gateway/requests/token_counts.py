"""Counts the tokens of a prompt before anything is written.

It counts only if the tokenizer and template of this process produce the same ids as the pool's
workers (`tailrace.prompts.agreement`). Otherwise a worker counts, as it does anyway before it
generates.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.load import worker_registry
from gateway.parsing import command, conversation
from tailrace import settings, telemetry
from tailrace.prompts import agreement, counter
from tailrace.protocol import errors, images, records

# Tokens that a template adds around a message or a tool, at most, by experience. A prompt that is
# certainly short is not counted, because counting takes milliseconds of this process.
_AROUND_TOKENS: Final = 64
_BYTES_OF_CHARACTER: Final = 4
REFRESH_S: Final = 1.0


class TokenCounts:
    """Counts prompts of the pools whose tokenizer this process has.

    Attributes:
        _folders: by pool, the folder that was read or cannot be.
        _counters: by pool, once its files were read.
        _lengths: by pool, the model's length if all its workers count as this process does. It
            stays while no worker is known.
        _logged_pools: pools whose disagreement was logged.
        _thread: a single one, because a tokenizer is not thread-safe.
    """

    def __init__(
        self, pools: settings.CurrentPools, workers: worker_registry.WorkerRegistry
    ) -> None:
        self._pools = pools
        self._workers = workers
        self._folders: dict[str, str] = {}
        self._counters: dict[str, counter.Counter] = {}
        self._lengths: dict[str, int] = {}
        self._logged_pools: set[str] = set()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "count")

    async def run(self) -> None:
        """Read the files of models, also after changes of pools, until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(REFRESH_S)

    async def read(self) -> None:
        """Read the files of new models. A failure is logged, and workers count."""
        folders = {pool.name: pool.tokenizer for pool in self._pools.catalog.pools}
        for stale in [
            name for name, folder in self._folders.items() if folders.get(name) != folder
        ]:
            self._folders.pop(stale)
            self._counters.pop(stale, None)
            self._lengths.pop(stale, None)
            self._logged_pools.discard(stale)
        for name, folder in folders.items():
            if not folder or name in self._folders:
                continue
            self._folders[name] = folder
            try:
                self._counters[name] = await self._in_thread(counter.Counter, Path(folder))
            except counter.NotCountable as error:
                _log_fallback(name, str(error))

    async def check(self, create: command.Create, request: records.Request) -> None:
        """Check that a request leaves room for an answer, if that is known.

        Raises:
            errors.ApiError: 400 context_length_exceeded.
        """
        length = self._length(create.pool)
        if length is None or request.truncate or most_tokens(request) < length:
            return
        await self._count(create, request, length)

    async def count(self, create: command.Create, request: records.Request) -> int | None:
        """The number of tokens of a request's prompt; None where a worker has to count.

        Raises:
            errors.ApiError: 400 context_length_exceeded.
        """
        length = self._length(create.pool)
        if length is None or request.truncate:
            return None
        return await self._count(create, request, length)

    def can_count(self, pool: str) -> bool:
        """Whether prompts of this pool can be counted here now."""
        return self._length(pool) is not None

    def close(self) -> None:
        """End the thread after its present call."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _count(
        self, create: command.Create, request: records.Request, length: int
    ) -> int | None:
        if request.fork is not None:
            return None  # it copies ids, which are in the log
        prompt_counter = self._counters[create.pool]
        tokens: int | None = await self._in_thread(prompt_counter.count, request)
        if tokens is not None and tokens + 1 > length:
            telemetry.REQUESTS.labels(outcome="refused").inc()
            message = agreement.too_long(tokens, length)
            raise errors.wrong_request("context_length_exceeded", message, param=_param(create))
        return tokens

    def _length(self, pool: str) -> int | None:
        """The model's length, if all workers of the pool count as this process does."""
        prompt_counter = self._counters.get(pool)
        if prompt_counter is None:
            return None
        reports = [
            (worker.get("counting_digest"), worker.get("max_model_len"))
            for worker in self._workers.workers(pool)
            if worker.get("state") != "loading"
        ]
        if reports:
            common = _common_length(prompt_counter.digest, reports)
            if common is None:
                self._lengths.pop(pool, None)
                if pool not in self._logged_pools:
                    self._logged_pools.add(pool)
                    _log_fallback(pool, "its workers make other prompts")
            else:
                self._lengths[pool] = common
        return self._lengths.get(pool)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def most_tokens(request: records.Request) -> int:
    """An upper bound of the prompt's tokens: no token of a tokenizer in use is shorter than a
    byte."""
    if images.any_in(request.messages):
        return 0  # only a worker can count them
    characters = conversation.characters(request.messages)
    tools = sum(_characters(tool) for tool in request.tools)
    around = _AROUND_TOKENS * (len(request.messages) + len(request.tools) + 1)
    return (characters + tools) * _BYTES_OF_CHARACTER + around


def _characters(value: Any) -> int:
    """Length of all texts in a JSON value, names of members and punctuation included."""
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + _characters(each) for name, each in value.items()) + 2
    if isinstance(value, list | tuple):
        return sum(_characters(each) + 2 for each in value) + 2
    return len(str(value)) + 2


def _common_length(digest: str, reports: Sequence[tuple[Any, Any]]) -> int | None:
    """The longest model length, if all workers count alike; else None."""
    lengths = [length for reported, length in reports if reported == digest and type(length) is int]
    return max(lengths) if len(lengths) == len(reports) else None


def _param(create: command.Create) -> str:
    """The client's field that holds the prompt."""
    if create.raw:
        return "prompt"
    return "messages" if create.choice is not None else "input"


def _log_fallback(pool: str, why: str) -> None:
    telemetry.log(telemetry.Action.COUNTING_LEFT_TO_WORKERS, pool=pool, detail=why)
