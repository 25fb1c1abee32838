"""The service processes of one deployment: started, probed, followed and stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.local import banner, child_process, logs, paths, plan, readiness, state

PROBE_STARTING_S = 0.25
PROBE_RUNNING_S = 2.0

# How long a service may take to stop. A worker ends its answers with YIELD within its own drain
# deadline; ten seconds more mean that it is stuck.
SERVICE_GRACE_S = 25.0


@dataclass(slots=True)
class Supervised:
    """One service process and what is known of it.

    Attributes:
        service: what it was started as.
        child: its process.
        part: its entry in the state file.
        shown: its log is followed on the terminal.
        answer: its last readiness.
        next_probe: when to ask again (monotonic).
        ended: its end was noticed and reported.
    """

    service: plan.Service
    child: child_process.ChildProcess
    part: state.Part
    shown: bool
    answer: readiness.Readiness = field(default_factory=readiness.Readiness)
    next_probe: float = 0.0
    ended: bool = False

    @property
    def failed(self) -> bool:
        """It ended, or says that it cannot become ready."""
        return self.ended or self.answer.state == "failed"

    def last_lines(self) -> str:
        """Where its log is, with its last lines if they were not shown."""
        if self.shown:
            return f"its lines are above, and in {self.part.log}"
        shown = "\n".join(logs.readable(line) for line in self.child.last_lines(25).splitlines())
        return f"its last lines ({self.part.log}):\n{shown}"

    def why_failed(self) -> str:
        """One sentence and its last lines."""
        code = self.child.returncode
        what = (
            describe_exit(code)
            if code is not None
            else f"reports: {self.answer.detail or 'failed'}"
        )
        return f"{self.service.name} {what}; {self.last_lines()}"


def describe_exit(code: int) -> str:
    """An exit code in words; a negative one is a signal."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Services:
    """All services of one deployment.

    `say` prints a line with the time; `show` prints a line as it is. `follow`: show the services'
    logs.
    """

    def __init__(
        self,
        data: paths.Data,
        run: str,
        *,
        follow: bool,
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> None:
        self._data = data
        self._run = run
        self._follow = follow
        self._say = say
        self._show = show
        self._all: list[Supervised] = []
        self._followers: dict[str, logs.Follower] = {}

    @property
    def edge(self) -> list[Supervised]:
        """Gateways and push services."""
        return [one for one in self._all if one.service.role != "worker"]

    @property
    def workers(self) -> list[Supervised]:
        """Workers."""
        return [one for one in self._all if one.service.role == "worker"]

    @property
    def pids(self) -> set[int]:
        """Pids of all processes started here."""
        return {one.child.pid for one in self._all}

    def start(self, service: plan.Service, log: Path) -> state.Part:
        """Start one service; its output goes to `log`. Returns its entry for the state file.

        Raises:
            processes.StartError: its program cannot be run.
        """
        child = child_process.ChildProcess(
            service.name,
            service.command,
            environ={**os.environ, **service.environ},
            log=log,
            run=self._run,
            cwd=paths.ROOT,
        )
        part = state.Part(
            name=service.name,
            role=service.role,
            pid=child.identity.pid,
            started=child.identity.started,
            address=service.address,
            probe=service.probe,
            log=str(log),
        )
        self._all.append(Supervised(service, child, part, self._follow))
        self._followers[service.name] = logs.Follower(log, child.log_start)
        return part

    def look(self, *, all_were_ready: bool) -> None:
        """Notice ends, probe what is due, and show new log lines.

        `all_were_ready`: the deployment was complete, so a lost service gets a hint how to replace
        it.
        """
        for one in self._all:
            self._notice_end(one, hint=all_were_ready)
            self._probe(one)
        self.show_logs()

    def _notice_end(self, one: Supervised, *, hint: bool) -> None:
        code = one.child.returncode
        if one.ended or code is None:
            return
        one.ended = True
        self.show_logs()
        one.part.exit_code, one.part.ready = code, False
        one.answer = readiness.Readiness()
        left = one.child.sweep()
        swept = f"; {len(left)} processes it left were ended" if left else ""
        self._say(f"{one.service.name} {describe_exit(code)}{swept}")
        if hint:
            default = self._data.root == paths.default_data()
            elsewhere = "" if default else f" --data {self._data.root}"
            self._say(
                f"  one in its place: {banner.program()} {one.service.role}{elsewhere}; its "
                f"log: {one.part.log}; the other parts go on"
            )

    def _probe(self, one: Supervised) -> None:
        if one.ended or time.monotonic() < one.next_probe:
            return
        before, now = one.answer, readiness.ask(one.service.probe)
        one.answer = now
        one.next_probe = time.monotonic() + (PROBE_RUNNING_S if now.ready else PROBE_STARTING_S)
        one.part.ready, one.part.detail = now.ready, now.detail
        name, address = one.service.name, one.service.address
        if now.ready and not before.ready:
            self._say(f"{name} ready{f' at {address}' if address else ''}")
        elif not now.ready and before.ready:
            self._say(f"{name} is not ready{f': {now.detail}' if now.detail else ''}")
        elif now != before and not now.ready and now.detail:
            self._say(f"{name}: {now.detail}")

    def show_logs(self) -> None:
        """Read new log lines, and show them if the logs are followed."""
        for name, follower in self._followers.items():
            for line in follower.lines():
                if self._follow:
                    self._show(f"{name:<10} | {logs.readable(line)}")

    def stop(self, hurry: Callable[[], bool]) -> None:
        """End all services: SIGTERM, a bounded wait, SIGKILL. `hurry` ends the wait early."""
        running = [one for one in self._all if one.child.returncode is None]
        for one in running:
            one.child.send(signal.SIGTERM)
        deadline = time.monotonic() + SERVICE_GRACE_S
        while (
            any(one.child.returncode is None for one in running)
            and time.monotonic() < deadline
            and not hurry()
        ):
            self.show_logs()
            time.sleep(0.05)
        for one in self._all:
            if one.child.returncode is None:
                self._say(f"{one.service.name} did not stop by itself and is killed")
            one.child.stop(0)
