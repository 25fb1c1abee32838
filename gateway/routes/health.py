"""`/health` and `/ready`: whether the process runs, and whether it can take requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.load import worker_registry
from gateway.load.breakers import Breakers
from gateway.load.canaries import Canaries
from gateway.requests.submission import Submission
from tailrace.log import interfaces
from tailrace.store.redis_store import RedisStore
from tailrace.web import access

NO_STORE: Final = {"cache-control": "no-store"}


class HealthRoutes:
    """The two calls."""

    def __init__(
        self,
        submission: Submission,
        gate: access.Access,
        redis: RedisStore,
        workers: worker_registry.WorkerRegistry,
        breakers: Breakers,
        canaries: Canaries,
        tails: Sequence[interfaces.TailReader],
    ) -> None:
        """`tails`: readers in addition to those of the delivery."""
        self._submission = submission
        self._gate = gate
        self._redis = redis
        self._workers = workers
        self._breakers = breakers
        self._canaries = canaries
        self._tails = tails

    async def health(self, _request: Request) -> Response:
        """`GET /health`: the process runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """`GET /ready`."""
        state = await self.readiness()
        return JSONResponse(state, 200 if state["ready"] else 503, headers=NO_STORE)

    async def readiness(self) -> dict[str, Any]:
        """Return the JSON of `/ready`. It depends on the log; Redis and engines may start later."""
        revisions = self._canaries.report()
        kafka = self._submission.responsive and all(reader.answers for reader in self._tails)
        return {
            "ready": self._submission.accepting
            and kafka
            and self._gate.revocations.ready
            and not self._submission.intake.leaving,
            "kafka": kafka,
            "redis": await self._redis.reachable(),
            "draining": self._submission.intake.leaving,
            "engine": self._workers.state(),
            "pools": self._breakers.report(),
            **({"revisions": revisions} if revisions else {}),
        }
