"""`tailrace gateway`, `push`, `worker`, `archive`: run one service in the foreground. Settings come
from the environment, and the missing ones from the deployment of the data folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tailrace import engines, settings
from tailrace.cli import control
from tailrace.local import dev_credentials, models, paths, plan, ports, processes, state


def defaults(
    role: plan.Role,
    running: state.State | None,
    data: paths.Data,
    page: Path | None,
) -> dict[str, str]:
    """Settings with which one more instance joins the deployment of this data folder."""
    shared = {"TAILRACE_NAME": f"{role}-{os.getpid()}"}
    if running:
        shared |= {
            "TAILRACE_ADMIN_PORT": str(ports.free_port()),
            "TAILRACE_KAFKA": running.kafka,
            "TAILRACE_REDIS": running.redis,
            "TAILRACE_POOLS": running.pools,
        }
    if role == "worker":
        return shared
    if running or role == "archive":
        shared["TAILRACE_ARCHIVE"] = plan.archive_url(data.archive, os.environ)
    if role == "archive":
        return shared
    shared["TAILRACE_ISSUERS"] = str(data.issuers)
    if running:
        shared["TAILRACE_ORIGINS"] = ",".join(
            url.replace(plan.HOST, host)
            for url in running.urls
            for host in (plan.HOST, "localhost")
        )
    if role == "gateway":
        shared |= {
            "TAILRACE_PAGE": str(page or ""),
            "TAILRACE_DEV_CREDENTIAL": str(data.credential),
            "TAILRACE_SESSION_KEY": str(data.session_key) if data.session_key.exists() else "",
        }
        if running:
            shared["TAILRACE_PUSH_URL"] = ",".join(running.push_urls)
    return shared


def _pool_environment(environ: Mapping[str, str], engine: str) -> dict[str, str] | None:
    """Settings of a worker, where TAILRACE_POOLS names a file: of the pool TAILRACE_POOL, else of
    the first one. None where it names none.

    Args:
        engine: of pools that name none.

    Raises:
        settings.Misconfigured
        plan.BadOption
    """
    catalog = settings.pools(environ)
    if catalog is None or catalog.file is None:
        return None
    name = environ.get("TAILRACE_POOL", catalog.names[0])
    options = plan.Options(engine, environ.get("TAILRACE_MODEL", ""))
    for each in plan.workers(options, catalog, paths.model()):
        if each.environ["TAILRACE_POOL"] == name:
            return dict(each.environ)
    return {"TAILRACE_POOL": name, "TAILRACE_ENGINE": engine}  # the worker says what is wrong


def run_pipelines(data: paths.Data, words: Sequence[str]) -> NoReturn:
    """Replace this process by the command of pipelines, with the addresses of the deployment of
    the data folder and its development credential."""
    running = state.load(data.state)
    shared = {}
    if running and running.phase != "stopped" and running.url:
        shared = {
            "TAILRACE_KAFKA": running.kafka,
            "TAILRACE_URL": running.url,
            "TAILRACE_CREDENTIAL_FILE": str(data.credential),
        }
    python = sys.executable
    os.execve(python, [python, "-m", "pipelines", *words], {**shared, **os.environ})  # noqa: S606


def run(role: plan.Role, data: paths.Data, settings_: Mapping[str, str]) -> NoReturn:
    """Replace this process by the service.

    Args:
        settings_: settings from options. They override the environment, which overrides `defaults`.

    Raises:
        StartError: the engine has no such model.
    """
    running = state.load(data.state)
    if running and running.phase == "stopped":
        running = None
    if role in ("gateway", "push") and "TAILRACE_ISSUERS" not in os.environ:
        dev_credentials.ensure(data)
    page = paths.PAGE if (paths.PAGE / "index.html").exists() else None
    environ = {**defaults(role, running, data, page), **os.environ, **settings_}
    if running:  # `ps`, `doctor` and `down` find it by its mark
        environ |= {
            processes.RUN_MARK: running.run,
            processes.PART_MARK: f"{role}-{control.JOINED}-{os.getpid()}",
        }
    python = sys.executable
    if role == "worker":
        engine = environ.get("TAILRACE_ENGINE", running.engine if running else engines.DEFAULT)
        pool_environment = _pool_environment(
            {**environ, "TAILRACE_MODEL": settings_.get("TAILRACE_MODEL", "")}, engine
        )
        if pool_environment is not None:
            environ = {**pool_environment, **environ}
        elif "TAILRACE_MODEL" not in os.environ or "TAILRACE_MODEL" in settings_:
            model = models.resolve(engine, settings_.get("TAILRACE_MODEL", ""))
            environ |= plan.worker_settings(engine, model)
            environ.setdefault("TAILRACE_POOLS", plan.pools(model))
        engine = environ.setdefault("TAILRACE_ENGINE", engine)
        if plan.needs_engine_environment(engine):
            python = str(paths.ENGINE_ENVIRONMENT / "bin" / "python")
    os.execve(python, [python, "-m", plan.module(role)], environ)  # noqa: S606
