"""A worker's state of life, as `/ready` and the heartbeat report it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tailrace import telemetry


class State(enum.Enum):
    """LOADING -> READY -> DRAINING. FAILED from each of them."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(slots=True)
class Status:
    """The worker's state.

    Attributes:
        detail: what the worker does or waits for; empty when READY.
        kafka: whether the broker answered the last request; there is none before the engine is
            ready.
        trouble: gives the problem of the engine's server that an operator must know; empty without
            one.
        features: what the engine can do beyond plain text; known once it is READY.
        not_offered: fields that the engine does not accept, by its trials; known once it is READY.
        parsers: names of the parsers of its answers; known once it is READY.
        cold_start_s: from the start to READY; 0 before.
        tokens_per_s: of the engine, over the last seconds.
    """

    state: State = State.LOADING
    detail: str = "starting"
    kafka: Callable[[], bool] = lambda: False
    trouble: Callable[[], str] = str
    features: Collection[str] = ()
    not_offered: Collection[str] = ()
    parsers: Collection[str] = ()
    cold_start_s: float = 0.0
    tokens_per_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the worker can no longer serve."""
        return self.state is State.FAILED

    @property
    def summary(self) -> str:
        """The detail, and the trouble if there is one."""
        return ": ".join(filter(None, (self.detail, self.trouble())))

    def change(self, state: State, detail: str = "") -> None:
        """Enter `state`."""
        self.state, self.detail = state, detail

    def fail(self, detail: str) -> None:
        """The engine or its start failed; the worker ends with exit code 1."""
        self.change(State.FAILED, detail)
        telemetry.ENGINE_READY.set(0)
        telemetry.log(telemetry.Action.ENGINE_FAILED, detail=detail)

    def readiness(self) -> dict[str, Any]:
        """The JSON of `/ready`."""
        kafka = self.kafka()
        return {
            "ready": self.state is State.READY and kafka,
            "state": self.state.value,
            "detail": self.summary,
            "kafka": kafka,
            "features": sorted(self.features),
            "not_offered": sorted(self.not_offered),
            "parsers": list(self.parsers),
            "cold_start_s": self.cold_start_s,
            "tokens_per_s": round(self.tokens_per_s, 1),
        }
