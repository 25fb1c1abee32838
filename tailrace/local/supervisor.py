"""Starts a whole deployment on this machine, starts again what ends, and ends every process of it.

One loop runs in one thread. It starts the children, because the kernel's parent-death signal
follows the thread that forked, and it polls and probes them. Signal handlers only count; the loop
reads the count.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tailrace import log as kafka_log
from tailrace import settings
from tailrace.local import (
    banner,
    dev_credentials,
    hints,
    infrastructure,
    models,
    parts,
    paths,
    plan,
    ports,
    processes,
    start_progress,
    state,
)
from tailrace.local.console import Console
from tailrace.local.supervised import ServiceProgram

TICK_S = 0.1
ORPHANS_S = 1.0  # between two scans for orphans, which read every process of the machine
# For how long a gateway, push service or archive may stand still before it is ready; an engine may
# load for any time.
STANDSTILL_S = 120.0
TOPICS_S = 60.0

PARTITIONS = 8


class Stopped(Exception):
    """The user requested a stop while parts were starting."""


class Supervisor:
    """One `tailrace up`.

    The state file holds `_state` whenever a part or the phase changed, so that `ps`, `down` and
    the next `up` find every process.

    Args:
        restart: start a part again that ended.
        verbose: also print the services' logs and every change of readiness.
        console: gets the output.
        stop_hint: how the user stops it ("Ctrl-C").
    """

    def __init__(
        self,
        options: plan.Options,
        data: paths.Data,
        *,
        restart: bool,
        verbose: bool,
        console: Console,
        stop_hint: str,
    ) -> None:
        self._options = options
        self._data = data
        self._verbose = verbose
        self._console = console
        self._stop_hint = stop_hint
        self._began = time.monotonic()
        run = processes.new_mark(data.root)
        self._state = state.State(run=run, supervisor=_own_part())
        self._saved_state = b""  # the state file's content
        self._pools: settings.Catalog | None = None  # of TAILRACE_POOLS, as it was at the start
        self._below = infrastructure.Infrastructure(data, run, self._say, self._status)
        self._parts = parts.Parts(
            data.root,
            restart=restart,
            cure=f"`{hints.command('down', data)}`, then `{hints.command('up', data)}`",
            say=self._say,
            note=self._note,
            show=console.line if verbose else None,
        )
        self._next_orphans = 0.0  # when to look for orphans again (monotonic)
        self._signals = 0  # how often the user requested a stop

    def _with_time(self, text: str) -> str:
        return f"[{time.monotonic() - self._began:5.1f} s] {text}"

    def _say(self, text: str) -> None:
        self._console.line(self._with_time(text))

    def _note(self, text: str) -> None:
        """What only `--verbose` prints; the log files and `ps` have it too."""
        if self._verbose:
            self._say(text)

    def _status(self, text: str) -> None:
        self._console.status(self._with_time(text))

    def run(self) -> int:
        """Run until the user stops it or it cannot start. Nothing that it started is left.

        Returns an exit code.
        """
        processes.become_subreaper()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        code = 0
        try:
            self._start()
            self._serve()
        except Stopped:
            pass
        except (processes.StartError, plan.BadOption, kafka_log.LogUnavailable) as error:
            self._say(f"FAILED: {error}")
            code = 1
        finally:
            self._console.clear()
            all_ended = self._stop()
        return code if all_ended else 1

    def _on_signal(self, signum: int, frame: object) -> None:
        self._signals += 1

    def _raise_if_stopped(self) -> None:
        if self._signals:
            raise Stopped

    def _save(self) -> None:
        encoded = repr(self._state).encode()
        if encoded != self._saved_state:
            state.save(self._data.state, self._state)
            self._saved_state = encoded

    # Starting

    def _start(self) -> None:
        self._say(f"starting; every part's log is in {self._data.logs} (--verbose shows them)")
        previous = state.load(self._data.state)
        self._clear_leftovers(previous)
        self._state.scratch = state.make_scratch()
        self._save()  # from here on `down` finds whatever is started
        workers = self._workers()
        self._check_engine(workers)
        self._check_ports()
        dev_credentials.ensure(self._data)
        dev_credentials.renew_page_credential(self._data)
        self._state.kafka_port = previous.kafka_port if previous else 0
        self._below.start(self._state.kafka_port, record=self._record, check=self._raise_if_stopped)
        self._state.kafka, self._state.redis = self._below.kafka, self._below.redis
        self._state.kafka_port = self._below.kafka_port or self._state.kafka_port
        for part in self._state.parts:
            self._parts.adopt(self._below.program(part.name), part)
        self._apply_topics()
        self._start_services(workers)
        self._wait_serving()

    def _record(self, parts: list[state.Part]) -> None:
        self._state.parts = parts
        self._save()

    def _clear_leftovers(self, previous: state.State | None) -> None:
        """End what earlier runs left. This process holds the data folder's lock, so those
        processes have no supervisor."""

        run = previous.run if previous else ""

        def leftovers() -> list[processes.Identity]:
            return [process.identity for process in processes.marked_in(self._data.root, run)]

        survivors = processes.end(leftovers, grace_s=5.0)
        if survivors:
            self._say(
                f"ended {processes.count_text(survivors)} left by a supervisor that was killed"
            )
        if previous:
            state.remove_scratch(previous)

    def _workers(self) -> list[plan.Workers]:
        """The workers of the pools in TAILRACE_POOLS, or of one pool with the options' model."""
        options = self._options
        self._state.engine = options.engine
        catalog = settings.pools()
        if catalog is None:
            model = models.resolve(options.engine, options.model)
            self._state.model, self._state.pools = model.name, plan.pools(model)
            return [plan.Workers(options.engine, plan.worker_settings(options.engine, model))]
        self._state.model = catalog.default_model
        self._state.pools = (
            str(catalog.file.absolute()) if catalog.file else os.environ["TAILRACE_POOLS"]
        )
        self._pools = catalog
        return plan.workers(options, catalog, paths.model())

    def _check_engine(self, workers: Sequence[plan.Workers]) -> None:
        python = paths.ENGINE_ENVIRONMENT / "bin" / "python"
        if (
            any(plan.needs_engine_environment(one.engine) for one in workers)
            and self._options.workers
            and not python.exists()
        ):
            place = "" if paths.IN_SOURCE_TREE else " in a clone of the repository"
            raise processes.StartError(
                f"the model engine is not installed: run `make install`{place}, or use --engine "
                f"scripted or --engine URL of an OpenAI-compatible server"
            )

    def _check_ports(self) -> None:
        gateway_ports, push_ports = plan.ports(self._options)
        busy = [
            f"port {port} ({option}) is taken{hints.holder(port)}"
            for option, numbers in (("--port", gateway_ports), ("--push-port", push_ports))
            for port in numbers
            if not ports.port_is_free(port)
        ]
        if busy:
            raise processes.StartError(
                f"{'; '.join(busy)}. Stop that, or use other ports: "
                f"{hints.free_ports_hint(self._data)}"
            )

    def _apply_topics(self) -> None:
        pools = self._pools.names if self._pools else (plan.POOL,)

        async def apply() -> list[str]:
            async with asyncio.timeout(TOPICS_S):
                return await kafka_log.apply_topics(self._state.kafka, pools, partitions=PARTITIONS)

        try:
            created = asyncio.run(apply())
        except TimeoutError:
            raise processes.StartError(f"Kafka at {self._state.kafka} does not answer") from None
        self._note(f"topics: {len(created)} created" if created else "topics: all there")

    def _start_services(self, workers: Sequence[plan.Workers]) -> None:
        page = paths.PAGE if (paths.PAGE / "index.html").exists() else None
        if page is None:
            self._say(
                "no page: the front end is not built (make install); the API works without it"
            )
        around = plan.Surroundings(
            kafka=self._state.kafka,
            redis=self._state.redis,
            issuers=self._data.issuers,
            credential=self._data.credential,
            session_key=self._data.session_key,
            archive=plan.archive_url(self._data.archive, os.environ),
            trials=paths.trials(),
            page=page,
            python=Path(sys.executable),
            engine_python=paths.ENGINE_ENVIRONMENT / "bin" / "python",
        )
        gateway_ports, push_ports = plan.ports(self._options)
        self._state.urls = [plan.url(port) for port in gateway_ports]
        self._state.url = self._state.urls[0]
        self._state.push_urls = [plan.url(port) for port in push_ports]
        used = {*gateway_ports, *push_ports}

        def free_port() -> int:
            port = ports.free_port(used)
            used.add(port)
            return port

        services = plan.services(self._options, self._state.pools, workers, around, free_port)
        if replaced := plan.replaced(services, os.environ):
            self._say(f"not used here, because `up` sets them itself: {', '.join(replaced)}")
        for service in services:
            self._raise_if_stopped()
            log = infrastructure.fresh_log(self._data.logs / f"{service.name}.log")
            program = ServiceProgram(
                service, run=self._state.run, log=log, scratch=self._state.scratch
            )
            self._state.parts.append(self._parts.start(program))
            self._save()

    def _wait_serving(self) -> None:
        """Wait for gateways and push services, which take seconds. `_serve` waits for the engine:
        a question can wait in Kafka."""
        edge = self._parts.edge
        began = time.monotonic()
        progress = {one.part.name: start_progress.StartProgress(began) for one in edge}
        while late := [one for one in edge if not one.answer.ready]:
            names = ", ".join(one.part.name for one in late)
            self._status(f"starting {names}")
            self._tick()
            for one in late:
                cpu_s = processes.cpu_s(one.child.identity)
                still_s = progress[one.part.name].still_s(time.monotonic(), cpu_s, one.answer)
                if still_s >= STANDSTILL_S:
                    raise processes.StartError(one.why_late(still_s, cpu_s))
        self._state.phase = "serving"
        self._save()
        for line in banner.lines(self._state, self._data):
            self._say(line)
        if self._verbose:
            for line in banner.more_lines(self._state, self._data):
                self._say(line)

    # Running

    def _serve(self) -> None:
        workers = self._parts.workers
        loading = time.monotonic()
        if workers and not all(one.answer.ready for one in workers):
            self._say(
                f"the engine ({self._options.engine}) is loading {self._state.model}; a question "
                f"asked now waits and is answered when it is ready"
            )
        while True:
            self._tick()
            if self._state.phase != "serving":
                continue
            self._status(f"the engine is loading: {time.monotonic() - loading:.0f} s")
            if all(one.answer.ready or (one.ended and not one.restarts.due) for one in workers):
                self._state.phase = "ready"
                self._parts.starting = False
                self._save()
                self._say(f"ready: {self._summary()}. {self._stop_hint} stops all of it")

    def _summary(self) -> str:
        missing = [part.name for part in self._state.parts if part.exit_code is not None]
        return f"all but {', '.join(missing)}" if missing else "every part is up"

    def _tick(self) -> None:
        self._raise_if_stopped()
        self._parts.poll()
        hopeless = self._parts.hopeless if self._parts.starting else None
        if hopeless:
            raise processes.StartError(hopeless.why_failed())
        if time.monotonic() >= self._next_orphans:
            processes.reap_orphans(self._parts.pids)
            self._next_orphans = time.monotonic() + ORPHANS_S
        dev_credentials.renew_page_credential(self._data)
        self._save()
        time.sleep(TICK_S)

    # Stopping

    def _stop(self) -> bool:
        """Stop the services, then Redis and Kafka, which the services need to end their answers.

        Every wait is bounded, and another signal of the user ends it. Returns whether every process
        of the deployment has ended.
        """
        self._state.phase = "stopping"
        self._save()
        signals_before = self._signals
        if self._state.parts:
            self._say("stopping")
        self._parts.stop_services(hurry=lambda: self._signals > signals_before)
        self._below.stop()
        survivors = [one for one in processes.sweep(self._state.run) if processes.alive(one)]
        for one in survivors:
            self._say(f"could not end process {one.pid} ({processes.command(one.pid)[:80]})")
        if self._state.parts and not survivors:
            self._say("everything is stopped")
        state.remove_scratch(self._state)
        # The broker's port stays, for the next start, and so does the mark, in case a process was
        # missed.
        self._state.phase, self._state.parts = "stopped", []
        self._save()
        return not survivors


def _own_part() -> state.Part:
    identity = processes.identity(os.getpid())
    started_at = identity.started if identity else 0
    return state.Part(
        name="supervisor", role="supervisor", pid=os.getpid(), started=started_at, since=time.time()
    )
