"""`ps` and `down`: list the deployment's processes, and stop them. Both use the state file and the
mark in each process's environment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from tailrace.local import (
    hints,
    kafka_broker,
    parts,
    paths,
    plan,
    ports,
    processes,
    readiness,
    redis_server,
    state,
    supervised,
)

# More than the supervisor's own limits together: services, Redis and broker stop one by one.
DOWN_S = parts.SERVICE_GRACE_S + redis_server.STOP_S + kafka_broker.STOP_S + 10

STARTING = "starting"
YOUNG_S = 30.0  # a process without an answer is "starting" for this long

JOINED = "joined"  # in the name of a service that was started by hand (`run_service`)


@dataclass(frozen=True, slots=True)
class Row:
    """One process as `ps` shows it.

    Attributes:
        state: "running"; "joined", a service started by hand; "orphan", left by a part or a
            supervisor that has ended; "gone"; or how it ended.
        restarts: how often the supervisor started it again.
        last_exit: how the process before this one ended; empty before the first restart.
        since: when it started, in seconds since the epoch; 0: unknown, or it does not run.
        log: its log file; empty without one.
        features: of a ready worker's engine, beyond plain text; None for other processes.
        parsers: names of the parsers that turn a ready worker's answers into items.
    """

    name: str
    role: state.Role
    pid: int
    address: str
    ready: bool
    state: str
    detail: str
    restarts: int = 0
    last_exit: str = ""
    since: float = 0.0
    log: str = ""
    features: tuple[str, ...] | None = None
    parsers: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the process exists."""
        return self.state in ("running", "joined", "orphan")


def able(row: Row) -> str:
    """The features of a worker's engine, in words; empty for other processes."""
    if row.features is None:
        return ""
    can = ", ".join(name.replace("_", " ") for name in row.features) or "plain text only"
    return f"{can}; parsers {', '.join(row.parsers)}" if row.parsers else can


def rows(data: paths.Data) -> list[Row]:
    """Every process of the deployment, with the engines of its workers. Empty if none runs."""
    running = state.load(data.state)
    parts = [running.supervisor, *running.parts] if running else []
    rows_ = [_row(part, running) for part in parts] if running else []
    rows_ += [
        Row(f"{part.name}/{below.name}", "engine", below.pid, "", True, "running", "")
        for part in parts
        if part.role == "worker" and processes.alive(part.identity)
        for below in processes.descendants(part.pid)
    ]
    pids = {row.pid for row in rows_ if row.runs}
    rows_ += _strangers(data, running.run if running else "", pids)
    return rows_ if any(row.runs for row in rows_) else []


def _row(part: state.Part, running: state.State) -> Row:
    now = _state(part)
    answer = _ready(part, running) if now == "running" else readiness.Readiness(detail=part.detail)
    last = "" if part.last_exit is None else supervised.exit_name(part.last_exit)
    return Row(
        part.name,
        part.role,
        part.pid,
        part.address,
        answer.ready,
        now,
        answer.detail,
        part.restarts,
        last,
        part.since if now == "running" else 0.0,
        part.log,
        _features(part.role, answer),
        answer.parsers,
    )


def _state(part: state.Part) -> str:
    if processes.alive(part.identity):
        return "running"
    if part.exit_code is None:
        return "gone"
    return f"ended ({supervised.exit_name(part.exit_code)})"


def _features(role: state.Role, answer: readiness.Readiness) -> tuple[str, ...] | None:
    return answer.features if role == "worker" and answer.ready else None


def _ready(part: state.Part, running: state.State) -> readiness.Readiness:
    """Whether a part is ready now, with a detail. Asks it, as the state file may be 2 s old."""
    if part.role == "supervisor":
        return readiness.Readiness(ready=running.phase == "ready", detail=running.phase)
    if part.role == "kafka":
        return readiness.Readiness(ready=ports.accepts(_port(part.address)))
    if part.role == "redis":
        return readiness.Readiness(ready=redis_server.answers(_port(part.address)))
    return _answer(part.probe, young=time.time() - part.since < YOUNG_S)


def _answer(probe: str, *, young: bool) -> readiness.Readiness:
    answer = readiness.query(probe)
    if answer.ready:
        # Of a worker it is the trouble with its engine's server.
        return answer if answer.features is not None else replace(answer, detail="")
    missing = STARTING if young else "it does not answer"
    return replace(answer, detail=answer.detail or answer.state or missing)


def _port(address: str) -> int:
    return urlsplit(address if "//" in address else f"//{address}").port or 0


def _strangers(data: paths.Data, run: str, known_pids: set[int]) -> Iterator[Row]:
    """Processes with the deployment's mark that are in no list: joined services and orphans."""
    joined_rows: dict[str, Row] = {}
    for process in processes.marked_in(data.root, run):
        pid = process.identity.pid
        if pid in known_pids:
            continue
        role, is_joined, _ = process.part.partition(f"-{JOINED}-")
        if not is_joined or role not in parts.SERVICE_ROLES:
            yield Row(processes.command(pid)[:40], "engine", pid, "", False, "orphan", "")
        elif process.part.endswith(f"-{pid}"):
            answer = _answer(f"{plan.url(int(process.admin_port or 0))}/ready", young=True)
            address = plan.url(int(process.port)) if process.port else ""
            joined_rows[process.part] = Row(
                process.part,
                role,  # type: ignore[arg-type]
                pid,
                address,
                answer.ready,
                "joined",
                answer.detail,
                features=_features(role, answer),  # type: ignore[arg-type]
                parsers=answer.parsers,
            )
            yield joined_rows[process.part]
        else:
            state_word = "running" if process.part in joined_rows else "orphan"
            yield Row(f"{process.part}/engine", "engine", pid, "", True, state_word, "")


def down(data: paths.Data, say: Callable[[str], None]) -> bool:
    """Stop the deployment of this folder. Returns False if a process could not be ended.

    Reports by name which processes were stopped, and which could not be.
    """
    running = state.load(data.state)
    names = {row.pid: row.name for row in rows(data) if row.runs}
    everyone = [who for pid in names if (who := processes.identity(pid))]
    if running and processes.alive(running.supervisor.identity):
        processes.send(running.supervisor.identity, signal.SIGTERM)
        if not _wait(running, say):
            say("the supervisor does not stop; killing it and everything it started")
            processes.send(running.supervisor.identity, signal.SIGKILL)
            processes.wait_until_ended([running.supervisor.identity], 5)
    elif state.is_held(data.lock):
        say(
            f"a supervisor holds {data.lock}, but {data.state} does not name it: end it yourself "
            f"(`fuser {data.lock}` names it)"
        )
        return False

    def left_behind() -> list[processes.Identity]:
        # A new `up` may have begun meanwhile: its processes carry another mark.
        if state.is_held(data.lock):
            return processes.find_marked(running.run) if running else []
        processes_ = processes.marked_in(data.root, running.run if running else "")
        return [process.identity for process in processes_]

    swept = processes.end(left_behind, grace_s=kafka_broker.STOP_S)
    everyone += [one for one in swept if one not in everyone]
    if not everyone:
        say(f"nothing runs here ({data.root})")
        return True
    if running and not state.is_held(data.lock):
        state.remove_scratch(running)
        running.phase, running.parts = "stopped", []
        state.save(data.state, running)
    return _report(everyone, names, say)


def _report(
    everyone: list[processes.Identity], names: dict[int, str], say: Callable[[str], None]
) -> bool:
    def name(one: processes.Identity) -> str:
        return names.get(one.pid, f"process {one.pid}")

    survivors = [one for one in everyone if processes.alive(one)]
    ended = [name(one) for one in everyone if one not in survivors]
    if ended:
        say(f"stopped {processes.count_text(ended)}: {', '.join(ended)}")
    for one in survivors:
        say(
            f"could not end {name(one)} (pid {one.pid}, {processes.command(one.pid)[:80]}): end "
            f"it as its owner, `kill -9 {one.pid}`"
        )
    if not survivors:
        say("everything is stopped")
    return not survivors


def last_words(data: paths.Data) -> str:
    """What to say when nothing runs: whether the last supervisor stopped in order."""
    last = state.load(data.state)
    if last is None or last.phase == "stopped":
        return f"nothing runs; `{hints.up(data, last)}` starts it"
    return (
        f"nothing runs; the last supervisor (pid {last.supervisor.pid}) was killed before it could "
        f"stop in order; `{hints.up(data, last)}` starts it again"
    )


def _wait(running: state.State, say: Callable[[str], None]) -> bool:
    began = time.monotonic()
    reported_s = 0
    while not processes.wait_until_ended([running.supervisor.identity], 1.0):
        elapsed_s = int(time.monotonic() - began)
        if elapsed_s >= DOWN_S:
            return False
        if elapsed_s // 5 > reported_s:
            reported_s = elapsed_s // 5
            say(f"stopping … {elapsed_s} s")
    return True
