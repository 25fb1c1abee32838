"""`tailrace doctor`: checks the needs of a deployment on this machine, and suggests repairs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tailrace import settings
from tailrace.cli import control
from tailrace.local import (
    hints,
    install_engine,
    install_kafka,
    install_steps,
    java,
    paths,
    plan,
    ports,
    processes,
    redis_server,
    state,
)

LEAST_DISK_GB = 2.0
ENGINE_MEMORY_GB = 4.0  # one vLLM CPU engine with the default model holds 3.2

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: "note": it works without; "problem": it does not.
        text: the finding.
        cure: what to do about it; every level but "ok" has one.
    """

    subject: str
    level: Level
    text: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.level != "ok" and not self.cure:
            raise ValueError(f"{self.subject}: {self.text}: a finding needs a cure")


def examine(data: paths.Data) -> list[Finding]:
    """Run every check. Changes nothing. Takes a second or two, because it computes checksums."""
    every_check: list[Callable[[], Finding]] = [
        _python,
        _java,
        _jars,
        _redis,
        _engine,
        _model,
        pools,
        _page,
        lambda: _disk(data),
    ]
    rows = control.rows(data)
    # A running engine holds its memory already.
    needed_gb = 0.0 if any(row.role == "worker" and row.runs for row in rows) else ENGINE_MEMORY_GB
    return [
        *(check() for check in every_check),
        _memory(psutil.virtual_memory().available / 1e9, needed_gb),
        *(deployment(data, rows) or _ports(data)),
    ]


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("Python", "ok", f"{version} ({sys.executable})")


INSTALL = "Run `make install`"


def _java() -> Finding:
    try:
        path = java.find()
    except processes.StartError as error:
        return Finding("Java", "problem", "no Java that Kafka can use", f"Cure: {error}")
    return Finding("Java", "ok", f"{java.version(path)} ({path})")


def _jars() -> Finding:
    folder = paths.jars()
    subject = f"Kafka {paths.KAFKA_VERSION}"
    if settings.command().kafka:
        return Finding(subject, "ok", "not needed: TAILRACE_KAFKA names a broker")
    if os.environ.get("KAFKA_HOME"):
        if folder.is_dir():
            return Finding(subject, "ok", f"from KAFKA_HOME ({folder}), not checked")
        return Finding(
            subject,
            "problem",
            f"KAFKA_HOME has no folder {folder}",
            f"Correct KAFKA_HOME, or unset it. {INSTALL} then",
        )
    if not paths.IN_SOURCE_TREE:
        if folder.is_dir():
            return Finding(
                subject, "ok", f"{folder}, not checked: the checksums are in the source tree"
            )
        return Finding(
            subject,
            "problem",
            f"not in {folder}",
            f"{INSTALL} in a clone of the repository, or set KAFKA_HOME or TAILRACE_KAFKA",
        )
    if not folder.is_dir():
        return Finding(subject, "problem", "not installed", INSTALL)
    try:
        install_kafka.check_jars(folder, install_kafka.committed_sums())
    except install_steps.InstallError as error:
        return Finding(subject, "problem", str(error), f"Remove {folder}. {INSTALL} then")
    return Finding(subject, "ok", f"every jar as in locks/kafka-jars.sha256 ({folder})")


def _redis() -> Finding:
    if settings.command().redis:
        return Finding("Redis", "ok", "not needed: TAILRACE_REDIS names one")
    try:
        return Finding("Redis", "ok", str(redis_server.find()))
    except processes.StartError as error:
        return Finding("Redis", "problem", "no redis-server", f"Cure: {error}")


def _engine() -> Finding:
    python = paths.ENGINE_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return Finding(
            "model engine",
            "note",
            "vLLM is not installed",
            f"{INSTALL}; --engine scripted or a URL work without it",
        )
    return Finding(
        "model engine",
        "ok",
        f"vLLM ({'GPU' if install_engine.has_gpu() else 'CPU'}) in {paths.ENGINE_ENVIRONMENT}",
    )


def _model() -> Finding:
    if (paths.model() / "model.safetensors").exists():
        return Finding("model", "ok", str(paths.model()))
    return Finding(
        "model", "note", f"{paths.MODEL} is not there", f"{INSTALL}, or name another with --model"
    )


def pools() -> Finding:
    """A file that says something wrong ends every command before it begins, with one line."""
    catalog = settings.pools()
    if catalog is None:
        return Finding("pools", "ok", "one, with the model of `up` (TAILRACE_POOLS is not set)")
    for pool in catalog.pools:
        for member, folder in (("source", pool.source), ("tokenizer", pool.tokenizer)):
            if folder.startswith("/") and not Path(folder).is_dir():
                return Finding(
                    "pools",
                    "problem",
                    f"pool {pool.name}: {member}: there is no folder {folder}",
                    f"Correct it in {catalog.file or 'TAILRACE_POOLS'}",
                )
    rules = f", and rules of auto: {len(catalog.rules)}" if catalog.rules else ""
    return Finding(
        "pools", "ok", f"{', '.join(catalog.names)}{rules} ({catalog.file or 'TAILRACE_POOLS'})"
    )


def _page() -> Finding:
    if (paths.PAGE / "index.html").exists():
        return Finding("page", "ok", str(paths.PAGE))
    return Finding("page", "note", "not built", f"{INSTALL}; the API works without it")


def _memory(free: float, needed_gb: float) -> Finding:
    """`free` and `needed` in GB."""
    if free < needed_gb:
        return Finding(
            "memory",
            "note",
            f"{free:.1f} GB free; the default engine needs {needed_gb:.0f}",
            "End other programs, or use --engine scripted or the URL of an engine",
        )
    return Finding("memory", "ok", f"{free:.1f} GB free")


def _disk(data: paths.Data) -> Finding:
    place = next(folder for folder in (data.root, *data.root.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    if free < LEAST_DISK_GB:
        return Finding(
            "disk",
            "problem",
            f"{free:.1f} GB free at {place}: Kafka stops when it is full",
            "Make room, or name another folder with --data",
        )
    return Finding("disk", "ok", f"{free:.1f} GB free at {place}")


def deployment(data: paths.Data, rows: Sequence[control.Row]) -> list[Finding]:
    """One line for each part that runs or should run."""
    return [
        _part(data, row)
        for row in rows
        if not (row.role in ("engine", "supervisor") and row.state == "running")
    ]


def _part(data: paths.Data, row: control.Row) -> Finding:
    detail = f" ({row.detail})" if row.detail else ""
    history = f", restarts: {row.restarts} (last exit: {row.last_exit})" if row.restarts else ""
    log = f"its log: {row.log}" if row.log else "it prints its log itself"
    if row.role == "supervisor":
        return Finding(
            row.name,
            "problem",
            f"pid {row.pid} is gone, and no supervisor watches what it left",
            f"`{hints.command('down', data)}` ends it; `{hints.up(data, state.load(data.state))}` "
            "replaces it",
        )
    if row.state == "orphan":
        return Finding(
            row.name,
            "problem",
            f"process {row.pid} was left behind",
            f"`{hints.command('down', data)}` ends it",
        )
    if not row.runs:
        is_restarting = row.detail.startswith("starts again") or "; starts again" in row.detail
        cure = (
            f"The supervisor starts it again; {log}"
            if is_restarting
            else f"Start again: `{hints.command('down', data)}`, then "
            f"`{hints.up(data, state.load(data.state))}`; {log}"
        )
        return Finding(row.name, "problem", f"{row.state}{detail}", cure)
    where = f" {row.address}" if row.address else ""
    if row.ready:
        able = control.able(row)
        if row.detail:
            cure = "Check TAILRACE_ENGINE, the model, and the TAILRACE_ENGINE_… variables"
            return Finding(row.name, "problem", f"ready, but {row.detail}{history}", cure)
        return Finding(row.name, "ok", f"ready{where}{f' ({able})' if able else ''}{history}")
    if "loading" in row.detail or row.detail == control.STARTING:
        return Finding(row.name, "note", f"loading{detail}{history}", f"Wait; {log}")
    return Finding(row.name, "problem", f"runs, but is not ready{detail}{history}", f"See {log}")


def _ports(data: paths.Data) -> list[Finding]:
    last = state.load(data.state)
    level: Level = "note"
    used = [
        Finding("deployment", level, "nothing runs here", f"`{hints.up(data, last)}` starts it")
    ]
    if last and last.phase != "stopped":
        used[0] = Finding(
            "deployment",
            "problem",
            f"nothing runs here: the last supervisor (pid {last.supervisor.pid}) was killed",
            f"`{hints.up(data, last)}` starts it again",
        )
    for port, option in (
        (plan.Options().port, "--port"),
        (plan.Options().push_port, "--push-port"),
    ):
        if not ports.port_is_free(port):
            used.append(
                Finding(
                    f"port {port}",
                    "problem",
                    f"taken{hints.holder(port)}",
                    f"Stop that, or start with {option} ANOTHER",
                )
            )
    return used
