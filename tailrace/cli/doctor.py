"""`tailrace doctor`: checks what a deployment on this machine needs, and says how to repair it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import psutil

from tailrace import settings
from tailrace.cli import control
from tailrace.local import (
    install_engine,
    install_kafka,
    install_steps,
    java,
    paths,
    plan,
    ports,
    processes,
    redis_server,
)

LEAST_DISK_GB = 2.0
ENGINE_MEMORY_GB = 4.0  # one vLLM CPU engine with the default model holds 3.2

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        level: "note" needs no action, "problem" does.
    """

    subject: str
    level: Level
    text: str


def examine(data: paths.Data) -> list[Finding]:
    """Run every check. Changes nothing. Takes a second or two, because it computes checksums."""
    every_check: list[Callable[[], Finding]] = [
        _python,
        _java,
        _jars,
        _redis,
        _engine,
        _model,
        _page,
        _memory,
        lambda: _disk(data),
    ]
    return [*(check() for check in every_check), *_deployment(data)]


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("Python", "ok", f"{version} ({sys.executable})")


def _java() -> Finding:
    try:
        found = java.find()
    except processes.StartError as error:
        return Finding("Java", "problem", str(error))
    return Finding("Java", "ok", f"{java.version(found)} ({found})")


def _jars() -> Finding:
    folder = paths.jars()
    subject = f"Kafka {paths.KAFKA_VERSION}"
    if settings.command().kafka:
        return Finding(subject, "note", "not needed: TAILRACE_KAFKA names a broker")
    if os.environ.get("KAFKA_HOME"):
        return Finding(
            subject,
            "note" if folder.is_dir() else "problem",
            f"from KAFKA_HOME ({folder}), not checked",
        )
    if not paths.IN_SOURCE_TREE:
        return Finding(
            subject, "note", f"{folder}, not checked: the checksums are in the source tree"
        )
    try:
        install_kafka.check_jars(folder, install_kafka.committed_sums())
    except install_steps.InstallError as error:
        return Finding(
            subject,
            "problem",
            f"{error}; run `make install`"
            if folder.is_dir()
            else "not installed: run `make install`",
        )
    return Finding(subject, "ok", f"every jar as in locks/kafka-jars.sha256 ({folder})")


def _redis() -> Finding:
    if settings.command().redis:
        return Finding("Redis", "note", "not needed: TAILRACE_REDIS names one")
    try:
        return Finding("Redis", "ok", str(redis_server.find()))
    except processes.StartError as error:
        return Finding("Redis", "problem", str(error))


def _engine() -> Finding:
    python = paths.ENGINE_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return Finding(
            "model engine",
            "note",
            "vLLM is not installed (make install); --engine scripted or a URL work without it",
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
        "model", "note", f"{paths.MODEL} is not there (make install); --model names another"
    )


def _page() -> Finding:
    if (paths.PAGE / "index.html").exists():
        return Finding("page", "ok", str(paths.PAGE))
    return Finding("page", "note", "not built (make install); the API works without it")


def _memory() -> Finding:
    free = psutil.virtual_memory().available / 1e9
    if free < ENGINE_MEMORY_GB:
        return Finding(
            "memory", "note", f"{free:.1f} GB free; the default engine needs {ENGINE_MEMORY_GB:.0f}"
        )
    return Finding("memory", "ok", f"{free:.1f} GB free")


def _disk(data: paths.Data) -> Finding:
    place = next(folder for folder in (data.root, *data.root.parents) if folder.exists())
    free = shutil.disk_usage(place).free / 1e9
    if free < LEAST_DISK_GB:
        return Finding(
            "disk",
            "problem",
            (
                f"{free:.1f} GB free at {place}: Kafka stops when it is full. Make room, or "
                f"--data elsewhere"
            ),
        )
    return Finding("disk", "ok", f"{free:.1f} GB free at {place}")


def _deployment(data: paths.Data) -> list[Finding]:
    rows = control.rows(data)
    if not rows:
        return _ports()
    found = []
    for row in rows:
        if row.role in ("engine", "supervisor") and row.state == "running":
            continue
        level: Level = "ok" if row.ready else "problem"
        ready = "ready" if row.ready else "not ready"
        detail = f" ({row.detail})" if row.detail else ""
        text = f"{row.state}, {ready}{detail} {row.address}".rstrip()
        if row.state == "orphan":
            text = f"process {row.pid} was left behind; `tailrace down` ends it"
        found.append(Finding(row.name, level, text))
    return found


def _ports() -> list[Finding]:
    found = [Finding("deployment", "note", "nothing runs here; `tailrace up` starts it")]
    for port, option in (
        (plan.Options().port, "--port"),
        (plan.Options().push_port, "--push-port"),
    ):
        if not ports.port_is_free(port):
            pid = ports.listener(port)
            holder = f" by process {pid}" if pid else ""
            found.append(
                Finding(
                    f"port {port}",
                    "problem",
                    f"taken{holder}; stop that, or start with {option} ANOTHER",
                )
            )
    return found
