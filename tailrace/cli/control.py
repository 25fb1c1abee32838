"""`ps` and `down`: list the deployment's processes, and stop them. Both use the state file and the
mark in each process's environment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from tailrace.local import (
    kafka_broker,
    paths,
    ports,
    processes,
    readiness,
    redis_server,
    services,
    state,
)

# More than the supervisor's own limits together: services, Redis and broker stop one by one.
DOWN_S = services.SERVICE_GRACE_S + redis_server.STOP_S + kafka_broker.STOP_S + 10


@dataclass(frozen=True, slots=True)
class Row:
    """One process as `ps` shows it.

    Attributes:
        state: "running", "orphan" (its supervisor is gone), or how it ended.
    """

    name: str
    role: state.Role
    pid: int
    address: str
    ready: bool
    state: str
    detail: str


def _state_of(part: state.Part) -> str:
    if processes.alive(part.identity):
        return "running"
    return f"exited ({part.exit_code})" if part.exit_code is not None else "gone"


def _ready(part: state.Part, running: state.State) -> tuple[bool, str]:
    """Whether a part is ready now, with a detail. Asks it, as the state file may be 2 s old."""
    if part.role == "supervisor":
        return running.phase == "ready", running.phase
    if part.role == "kafka":
        return ports.accepts(_port(part.address)), ""
    if part.role == "redis":
        return redis_server.answers(_port(part.address)), ""
    answer = readiness.ask(part.probe)
    return answer.ready, answer.detail or answer.state


def _port(address: str) -> int:
    return urlsplit(address if "//" in address else f"//{address}").port or 0


def rows(data: paths.Data) -> list[Row]:
    """Every process of the deployment, with the engines of its workers. Empty if none runs."""
    running = state.load(data.state)
    if running is None:
        return []
    found: list[Row] = []
    for part in [running.supervisor, *running.parts]:
        now = _state_of(part)
        if now != "running":
            if part.role != "supervisor":
                found.append(
                    Row(part.name, part.role, part.pid, part.address, False, now, part.detail)
                )
            continue
        ready, detail = _ready(part, running)
        found.append(Row(part.name, part.role, part.pid, part.address, ready, now, detail))
        if part.role == "worker":
            found += [
                Row(f"{part.name}/{below.name}", "engine", below.pid, "", ready, now, "")
                for below in processes.descendants(part.pid)
            ]
    found += [
        Row(processes.command(other.pid)[:40], "engine", other.pid, "", False, "orphan", "")
        for other in processes.marked(running.run)
        if other.pid not in {row.pid for row in found}
    ]
    return found if any(row.state in ("running", "orphan") for row in found) else []


def down(data: paths.Data, say: Callable[[str], None]) -> bool:
    """Stop the deployment of this folder. Returns whether something was stopped."""
    running = state.load(data.state)
    if running is None:
        say(f"nothing runs here ({data.root})")
        return False
    if processes.alive(running.supervisor.identity):
        processes.send(running.supervisor.identity, signal.SIGTERM)
        if not _wait(running, say):
            say("the supervisor does not stop; killing it and everything it started")
            processes.send(running.supervisor.identity, signal.SIGKILL)
            processes.wait_gone([running.supervisor.identity], 5)
        stopped = True
    else:
        stopped = False
    left = processes.sweep(running.run, grace_s=kafka_broker.STOP_S)
    if left:
        say(f"ended {len(left)} processes that a killed supervisor or service left behind")
    if not stopped and not left:
        say(f"nothing runs here ({data.root})")
        return False
    if not state.is_held(data.lock):
        running.phase, running.parts = "stopped", []
        state.save(data.state, running)
    say("everything is stopped")
    return True


def _wait(running: state.State, say: Callable[[str], None]) -> bool:
    began = time.monotonic()
    told = 0
    while not processes.wait_gone([running.supervisor.identity], 1.0):
        passed = int(time.monotonic() - began)
        if passed >= DOWN_S:
            return False
        if passed // 5 > told:
            told = passed // 5
            say(f"stopping … {passed} s")
    return True
