"""Embeds texts with a pool of this deployment, like `POST /v1/embeddings`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.answers import embeddings
from gateway.parsing import command, embeddings_api
from gateway.requests import choices
from gateway.requests.submission import Submission
from gateway.requests.withdrawals import Withdrawals
from tailrace import log, settings
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.settings import shapes

TOGETHER: Final = 4 * embeddings_api.PART_INPUTS  # texts that are embedded together


class Embedder:
    """Embeds with one model."""

    def __init__(
        self,
        model: str,
        pools: settings.CurrentPools,
        submission: Callable[[], Submission],
        withdrawals: Withdrawals,
    ) -> None:
        """`submission` is called at each use: the submission is wired later, because it needs the
        file search."""
        self.model = model
        self._pools = pools
        self._submission = submission
        self._withdrawals = withdrawals

    @property
    def longest(self) -> int:
        """The longest text, in tokens.

        Raises:
            errors.ApiError: 503, no pool offers the model.
        """
        return self._pool.max_model_len

    @property
    def _pool(self) -> shapes.Pool:
        """Raises like `longest`, because pools change."""
        match = self._pools.catalog.find(self.model)
        if match is None:
            raise errors.unavailable(f"No pool of this deployment offers {self.model!r}.")
        return match[0]

    async def embed(
        self, principal: Principal, texts: Sequence[str], *, later: str = ""
    ) -> list[bytes]:
        """The vectors, in little-endian float32, charged to `principal`. A text that is too long
        for the model is truncated. `later`: an idempotency key for background work. It runs with
        batch priority, and is charged once for each key.

        Raises:
            errors.ApiError: like `POST /v1/embeddings`; 503, the log lost a response.
        """
        pool = self._pool
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "truncate_prompt_tokens": -1,
        }
        if later and "batch" in pool.classes:
            body["service_tier"] = "flex"
        creates = [
            command.with_key(each, later, body)
            for each in embeddings_api.parse(body, self._pools.catalog).creates
        ]
        with await choices.submit(
            self._submission(), self._withdrawals, choices.requests(creates[0], creates), principal
        ) as streams:
            try:
                await streams.to_end()
            except (log.HistoryLost, log.LogUnavailable) as error:
                raise errors.unavailable("The log cannot be read right now.") from error
            finals = [stream.final for stream in streams.streams if stream.final is not None]
            embeddings.check(finals)
            vectors = [vector for s in streams.streams for vector in s.subscription.vectors]
        await asyncio.sleep(0)
        if len(vectors) != len(texts):
            raise errors.unavailable("Embeddings are incomplete.")
        return vectors
