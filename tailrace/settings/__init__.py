"""Settings: every variable, how its text is read, and the frozen object that each service gets.

In: the environment. Out: `GatewaySettings`, `PushSettings`, `WorkerSettings`, `ArchiveSettings`,
`CommandSettings`, or `Misconfigured` with one line. Nothing else in the services reads the
environment.
"""

from __future__ import annotations

from tailrace.settings.catalog import Catalog
from tailrace.settings.current_pools import CurrentPools
from tailrace.settings.kinds import Misconfigured
from tailrace.settings.services import (
    ArchiveSettings,
    CommandSettings,
    EdgeSettings,
    GatewaySettings,
    PushSettings,
    ServiceSettings,
    WorkerSettings,
    archive,
    check,
    command,
    gateway,
    pools,
    push,
    record_keys,
    worker,
)
from tailrace.settings.shapes import DEFAULT_OUTPUT_TOKENS, Limits, Pool, Price

__all__ = [
    "DEFAULT_OUTPUT_TOKENS",
    "ArchiveSettings",
    "Catalog",
    "CommandSettings",
    "CurrentPools",
    "EdgeSettings",
    "GatewaySettings",
    "Limits",
    "Misconfigured",
    "Pool",
    "Price",
    "PushSettings",
    "ServiceSettings",
    "WorkerSettings",
    "archive",
    "check",
    "command",
    "gateway",
    "pools",
    "push",
    "record_keys",
    "worker",
]
