"""Starts a whole deployment on this machine, watches it, and takes every process down again,
whatever happens.

One loop in one thread: children are started from it (the kernel's parent-death signal follows the
thread that forked), polled by it, probed by it. Signals only set a flag that the loop reads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailrace import log as wire_log
from tailrace.local import (
    banner,
    dev_credentials,
    infrastructure,
    install,
    logs,
    models,
    paths,
    plan,
    processes,
    state,
)

TICK_SECONDS = 0.1
PROBE_STARTING_SECONDS = 0.25
PROBE_RUNNING_SECONDS = 2.0
PROBE_TIMEOUT = 1.0

# How long a part may take to stop by itself. A worker ends its answers with YIELD within its own
# drain deadline; ten seconds more is stuck.
SERVICE_GRACE = 25.0
# gateway and push; engines may take as long as they like, as long as they say that they load
EDGE_READY_SECONDS = 120.0
TOPICS_SECONDS = 60.0

PARTITIONS = 8


class Stopped(Exception):
    """The user asked to stop while things were starting."""


@dataclass(slots=True)
class Probe:
    """The answer of one /ready."""

    ready: bool = False
    state: str = ""
    detail: str = ""


def ask(url: str) -> Probe:
    """Never raises: no answer is "not ready"."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PROBE_TIMEOUT)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read(65_536)
    except (OSError, http.client.HTTPException):
        return Probe()
    finally:
        connection.close()
    return read_probe(answer.status, body)


def read_probe(status: int, body: bytes) -> Probe:
    """From a /ready answer: `{"ready": bool, "state": "...", "detail": "..."}`, or the status code
    alone."""
    try:
        fields: Any = json.loads(body)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict):
        fields = {}
    return Probe(
        ready=status == 200,
        state=str(fields.get("state") or ""),
        detail=str(fields.get("detail") or ""),
    )


@dataclass(slots=True)
class Supervised:
    """A service and its process."""

    service: plan.Service
    child: processes.Child
    part: state.Part
    probe: Probe = field(default_factory=Probe)
    next_probe: float = 0.0  # monotonic
    ended: bool = False  # its end was noticed and reported
    shown: bool = False  # its log is followed on the terminal

    @property
    def failed(self) -> bool:
        return self.ended or self.probe.state == "failed"


class Supervisor:
    """One `tailrace up`. `follow`: show the services' logs, as in a terminal."""

    def __init__(
        self,
        options: plan.Options,
        data: paths.Data,
        *,
        follow: bool,
        say: Callable[[str], None] = print,
    ) -> None:
        self._options = options
        self._data = data
        self._follow = follow
        self._print = say
        self._began = time.monotonic()
        self._run = secrets.token_hex(8)
        self._state = state.State(run=self._run, supervisor=self._own_part())
        self._saved = b""  # what the state file holds, encoded
        self._below = infrastructure.Infrastructure(data, self._run, self._say)
        self._services: list[Supervised] = []
        self._followers: dict[str, logs.Follower] = {}
        self._signals = 0  # how often the user asked to stop

    # What the user sees

    def _say(self, text: str) -> None:
        self._print(f"[{time.monotonic() - self._began:5.1f} s] {text}")

    def _say_plainly(self, text: str) -> None:
        self._print(text)

    # Life

    def run(self) -> int:
        """Until the user stops it or it cannot start; nothing that it started is left afterwards.
        Returns an exit code."""
        processes.become_subreaper()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        code = 0
        try:
            self._start()
            self._serve()
        except Stopped:
            pass
        except (processes.StartError, plan.BadOption, wire_log.LogUnavailable) as error:
            self._say(f"FAILED: {error}")
            code = 1
        finally:
            self._stop()
        return code

    def _on_signal(self, signum: int, frame: object) -> None:
        self._signals += 1

    def _own_part(self) -> state.Part:
        who = processes.identity(os.getpid())
        return state.Part(
            name="supervisor", role="supervisor", pid=os.getpid(), started=who.started if who else 0
        )

    def _save(self) -> None:
        encoded = repr(self._state).encode()
        if encoded != self._saved:
            state.save(self._data.state, self._state)
            self._saved = encoded

    # Starting

    def _start(self) -> None:
        previous = state.load(self._data.state)
        if previous:
            self._clear_leftovers(previous)
        self._save()  # from here on `down` can find whatever is started
        model = models.resolve(self._options.engine, self._options.model)
        self._check_engine()
        self._check_ports()
        dev_credentials.ensure(self._data)
        dev_credentials.renew_page_credential(self._data)
        self._state.engine, self._state.model, self._state.pools = (
            self._options.engine,
            model.name,
            plan.pools(model),
        )
        self._state.kafka_port = previous.kafka_port if previous else 0
        self._below.start(self._state.kafka_port, recorded=self._record, check=self._check_stopped)
        self._state.kafka, self._state.redis = self._below.kafka, self._below.redis
        self._state.kafka_port = self._below.kafka_port or self._state.kafka_port
        self._apply_topics()
        self._start_services(model)
        self._wait_serving()

    def _record(self, parts: list[state.Part]) -> None:
        self._state.parts = parts
        self._save()

    def _clear_leftovers(self, previous: state.State) -> None:
        """The data folder's lock is ours, so whatever carries the previous run's mark has no
        supervisor."""
        left = processes.sweep(previous.run, grace=5.0)
        if left:
            self._say(f"ended {len(left)} processes left by a supervisor that was killed")

    def _check_engine(self) -> None:
        python = install.ENGINE_ENVIRONMENT / "bin" / "python"
        if (
            plan.needs_engine_environment(self._options.engine)
            and self._options.workers
            and not python.exists()
        ):
            raise processes.StartError(
                "the model engine is not installed: run `make install`, or use --engine "
                "scripted or --engine URL of an OpenAI-compatible server"
            )

    def _check_ports(self) -> None:
        gateway_ports, push_ports = plan.ports(self._options)
        for option, ports in (("--port", gateway_ports), ("--push-port", push_ports)):
            for port in ports:
                if not processes.port_is_free(port):
                    raise processes.StartError(
                        f"port {port} is taken{_holder(port)}; stop that, or choose another "
                        f"with {option}"
                    )

    def _apply_topics(self) -> None:
        pools = tuple(json.loads(self._state.pools))
        try:
            created = asyncio.run(
                asyncio.wait_for(
                    wire_log.apply_topics(self._state.kafka, pools, partitions=PARTITIONS),
                    TOPICS_SECONDS,
                )
            )
        except TimeoutError:
            raise processes.StartError(f"Kafka at {self._state.kafka} does not answer") from None
        self._say(f"topics: {len(created)} created" if created else "topics: all there")

    def _start_services(self, model: plan.Model) -> None:
        page = install.PAGE if (install.PAGE / "index.html").exists() else None
        if page is None:
            self._say(
                "no page: the front end is not built (make install); the API works without it"
            )
        around = plan.Surroundings(
            kafka=self._state.kafka,
            redis=self._state.redis,
            issuers=self._data.issuers,
            credential=self._data.credential,
            page=page,
            python=Path(sys.executable),
            engine_python=install.ENGINE_ENVIRONMENT / "bin" / "python",
        )
        gateway_ports, push_ports = plan.ports(self._options)
        self._state.urls = [plan.url(port) for port in gateway_ports]
        self._state.url = self._state.urls[0]
        self._state.push_urls = [plan.url(port) for port in push_ports]
        taken = {*gateway_ports, *push_ports}

        def free_port() -> int:
            port = processes.free_port(taken)
            taken.add(port)
            return port

        for service in plan.services(self._options, model, around, free_port):
            self._check_stopped()
            self._start_service(service)

    def _start_service(self, service: plan.Service) -> None:
        log = infrastructure.fresh_log(self._data.logs / f"{service.name}.log")
        child = processes.Child(
            service.name,
            service.command,
            environ={**os.environ, **service.environ},
            log=log,
            run=self._run,
            cwd=paths.ROOT,
        )
        who = child.identity
        part = state.Part(
            name=service.name,
            role=service.role,
            pid=who.pid,
            started=who.started,
            address=service.address,
            probe=service.probe,
            log=str(log),
        )
        self._services.append(Supervised(service, child, part, shown=self._follow))
        self._state.parts.append(part)
        self._followers[service.name] = logs.Follower(log, child.log_start)
        self._save()

    def _wait_serving(self) -> None:
        """Gateway and push answer in seconds; the engine's readiness is awaited in `_serve`, since
        a question can wait in Kafka."""
        deadline = time.monotonic() + EDGE_READY_SECONDS
        edge = [one for one in self._services if one.service.role != "worker"]
        while not all(one.probe.ready for one in edge):
            self._tick()
            for one in edge:
                if one.failed:
                    raise processes.StartError(_why(one))
            if time.monotonic() >= deadline:
                late = next(one for one in edge if not one.probe.ready)
                raise processes.StartError(
                    f"{late.service.name} was not ready after {EDGE_READY_SECONDS:.0f} s; "
                    f"{_last_lines(late)}"
                )
        self._state.phase = "serving"
        self._save()
        for line in banner.lines(
            self._state, dev_credentials.issue(self._data, dev_credentials.PAGE_SUBJECT, 3600)
        ):
            self._say_plainly(line)

    # Running

    def _serve(self) -> None:
        workers = [one for one in self._services if one.service.role == "worker"]
        if workers and not all(one.probe.ready for one in workers):
            self._say(
                f"the engine ({self._options.engine}) is loading; a question asked now waits "
                f"in Kafka and is answered when it is ready"
            )
        while True:
            self._tick()
            if self._state.phase != "serving":
                continue
            if workers and all(one.failed for one in workers):
                raise processes.StartError(_why(workers[0]))
            if all(one.probe.ready or one.ended for one in workers):
                self._state.phase = "ready"
                self._save()
                self._say(f"ready: every part is up (data in {self._data.root})")

    def _tick(self) -> None:
        self._check_stopped()
        for one in self._services:
            self._notice_end(one)
            self._probe(one)
        self._notice_end_below()
        self._reap_orphans()
        dev_credentials.renew_page_credential(self._data)
        self._show_logs()
        self._save()
        time.sleep(TICK_SECONDS)

    def _check_stopped(self) -> None:
        if self._signals:
            raise Stopped

    def _notice_end(self, one: Supervised) -> None:
        code = one.child.returncode
        if one.ended or code is None:
            return
        one.ended = True
        self._show_logs()
        one.part.exit_code, one.part.ready, one.probe = code, False, Probe()
        left = one.child.sweep()
        taken_along = f"; {len(left)} processes it left were ended" if left else ""
        self._say(f"{one.service.name} {_ended(code)}{taken_along}")
        if self._state.phase == "ready":
            elsewhere = (
                "" if self._data.root == paths.default_data() else f" --data {self._data.root}"
            )
            self._say(
                f"  one in its place: {banner.program()} {one.service.role}{elsewhere}; its "
                f"log: {one.part.log}; the other parts go on"
            )

    def _notice_end_below(self) -> None:
        for name, code, last_lines in self._below.ended():
            known = next(part for part in self._state.parts if part.name == name)
            if known.exit_code is None:
                known.exit_code, known.ready = code, False
                self._say(
                    f"{name} {_ended(code)}; nothing new can be answered. Stop and start "
                    f"again (`tailrace up`). Its last lines:"
                )
                self._say_plainly(last_lines)

    def _probe(self, one: Supervised) -> None:
        now = time.monotonic()
        if one.ended or now < one.next_probe:
            return
        before = one.probe
        one.probe = ask(one.service.probe)
        one.next_probe = time.monotonic() + (
            PROBE_RUNNING_SECONDS if one.probe.ready else PROBE_STARTING_SECONDS
        )
        one.part.ready, one.part.detail = one.probe.ready, one.probe.detail
        if one.probe.ready and not before.ready:
            self._say(
                f"{one.service.name} ready{f' at {one.service.address}' if one.service.address else ''}"
            )
        elif not one.probe.ready and before.ready:
            self._say(
                f"{one.service.name} is not ready{f': {one.probe.detail}' if one.probe.detail else ''}"
            )
        elif (
            one.probe.detail
            and (one.probe.state, one.probe.detail) != (before.state, before.detail)
            and not one.probe.ready
        ):
            self._say(f"{one.service.name}: {one.probe.detail}")

    def _reap_orphans(self) -> None:
        processes.reap_orphans({one.child.pid for one in self._services} | self._below.pids)

    def _show_logs(self) -> None:
        for name, follower in self._followers.items():
            for line in follower.lines():
                if self._follow:
                    self._say_plainly(f"{name:<10} | {logs.readable(line)}")

    # Stopping

    def _stop(self) -> None:
        """Services first, since they need Redis and Kafka to end their answers; every wait is
        bounded; a second signal ends the patience."""
        self._state.phase = "stopping"
        self._save()
        asked_before = self._signals
        running = [one for one in self._services if one.child.returncode is None]
        if self._state.parts:
            self._say("stopping")
        for one in running:
            one.child.send(signal.SIGTERM)
        deadline = time.monotonic() + SERVICE_GRACE
        while (
            any(one.child.returncode is None for one in running)
            and time.monotonic() < deadline
            and self._signals <= asked_before
        ):
            self._show_logs()
            time.sleep(0.05)
        for one in self._services:
            if one.child.returncode is None:
                self._say(f"{one.service.name} did not stop by itself and is killed")
            one.child.stop(0)
        self._below.stop()
        processes.sweep(self._run)
        if self._state.parts:
            self._say("everything is stopped")
        # What stays is the broker's port, for the next start, and the mark, in case anything was
        # missed.
        self._state.phase, self._state.parts = "stopped", []
        self._save()


def _holder(port: int) -> str:
    """Who listens there, when it is a process of this user's that can be seen."""
    pid = processes.listener(port)
    return f" by process {pid} ({processes.command(pid)[:80]})" if pid else ""


def _ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _last_lines(one: Supervised) -> str:
    if one.shown:
        return f"its lines are above, and in {one.part.log}"
    shown = "\n".join(logs.readable(line) for line in one.child.last_lines(25).splitlines())
    return f"its last lines ({one.part.log}):\n{shown}"


def _why(one: Supervised) -> str:
    code = one.child.returncode
    what = _ended(code) if code is not None else f"reports: {one.probe.detail or 'failed'}"
    return f"{one.service.name} {what}; {_last_lines(one)}"
