"""`make install`: engine, model, Kafka, Java, Redis and the page, once `.venv` exists.

Each step knows whether it is done. Its result is whole or absent: it is made next to its place and
then renamed. Steps that wait for different things (network, disk, npm) run at the same time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tailrace import engines, settings
from tailrace.local import (
    install_engine,
    install_kafka,
    install_page,
    install_steps,
    paths,
    plan,
    processes,
    redis_server,
)
from tailrace.local.install_steps import Step, apt


def _has_redis() -> bool:
    if settings.command().redis:
        return True
    try:
        redis_server.find()
    except processes.StartError:
        return False
    return True


def _install_redis() -> None:
    apt(
        "redis",
        ["redis-server"],
        "no Redis here. Ask for: apt-get install redis-server; or set TAILRACE_REDIS=redis://…",
    )


def lanes(engine: str, page: bool) -> list[list[Step]]:
    """The steps of an installation. Lanes run at the same time, the steps of a lane in order.

    Raises:
        plan.BadOption: `engine` is not an engine.
    """
    lanes_ = [
        [
            Step("Java", install_kafka.has_java, install_kafka.install_java),
            Step(
                f"Apache Kafka {paths.KAFKA_VERSION}",
                install_kafka.jars_present,
                install_kafka.fetch_jars,
            ),
            Step(
                "Kafka's class archive",
                install_kafka.has_class_archive,
                install_kafka.archive_classes,
            ),
        ],
        [Step("Redis", _has_redis, _install_redis)],
    ]
    if plan.needs_engine_environment(engine):
        engine_steps = [
            Step("libnuma", install_engine.has_numa, install_engine.install_numa),
            Step(
                "model engine (vLLM)",
                install_engine.engine_installed,
                install_engine.install_environment,
            ),
            Step("model", install_engine.model_present, install_engine.build_model),
        ]
        lanes_.insert(0, engine_steps)
    if page and paths.FRONTEND.is_dir():
        lanes_.append([Step("page", install_page.page_built, install_page.build_page)])
    return lanes_


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns an exit code."""
    try:
        settings.check()
    except settings.Misconfigured as wrong:
        print(f"make install: {wrong}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(prog="make install", description="Install what is missing.")
    parser.add_argument(
        "--engine",
        default=settings.command().engine,
        help=f"{engines.CHOICES} (for which no engine is installed)",
    )
    parser.add_argument("--no-page", action="store_true", help="leave the front end out")
    options = parser.parse_args(arguments)
    try:
        work = lanes(options.engine, page=not options.no_page)
    except plan.BadOption as error:
        parser.error(str(error))
    return _perform(work)


def _perform(work: Sequence[Sequence[Step]]) -> int:
    progress = install_steps.Progress()
    pending = [step.name for lane in work for step in lane if step.due()]
    if pending:
        shutil.rmtree(install_steps.LOGS, ignore_errors=True)
        progress.console.line(f"installing {', '.join(pending)} (logs in {install_steps.LOGS})")
    began = time.monotonic()
    with progress.shown(), ThreadPoolExecutor(max_workers=len(work)) as pool:
        failures = [
            error
            for error in pool.map(lambda lane: install_steps.perform_lane(lane, progress), work)
            if error
        ]
    for failure in failures:
        print(f"make install: {failure}", file=sys.stderr)
    if failures:
        return 1
    took = f" ({time.monotonic() - began:.0f} s)" if progress.performed else ""
    progress.console.line(f"everything is installed{took}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
