"""The running parts of one deployment: probed, followed, started again when they end, stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.local import logs, processes, readiness, state
from tailrace.local.supervised import Program, ServiceProgram, Supervised, describe_exit

PROBE_STARTING_S = 0.25
PROBE_RUNNING_S = 2.0

# How long a service may take to stop. A worker ends its answers with YIELD within its own drain
# deadline; ten seconds more mean that it is stuck.
SERVICE_GRACE_S = 25.0

SERVICE_ROLES = ("gateway", "push", "worker", "archive")


class Parts:
    """All parts of one deployment.

    Args:
        folder: the data folder, by which services that joined are found.
        restart: start a part again that ended.
        cure: what the user can do about a part that ended when `restart` is False.
        say: prints a line with the time.
        note: like `say`, for lines that only `--verbose` shows.
        show: prints one line of a log; None: logs are not followed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        restart: bool,
        cure: str,
        say: Callable[[str], None],
        note: Callable[[str], None],
        show: Callable[[str], None] | None,
    ) -> None:
        self._folder = folder
        self._restart = restart
        self._cure = cure
        self._say = say
        self._note = note
        self._show = show
        self._all: list[Supervised] = []
        self._followers: dict[str, logs.Follower] = {}
        self.starting = True  # until the deployment was ready once

    def _with_role(self, *roles: str) -> list[Supervised]:
        return [one for one in self._all if one.part.role in roles]

    @property
    def edge(self) -> list[Supervised]:
        """Gateways, push services and the archive's process: all that is up in seconds."""
        return self._with_role("gateway", "push", "archive")

    @property
    def workers(self) -> list[Supervised]:
        """Workers."""
        return self._with_role("worker")

    @property
    def pids(self) -> set[int]:
        """Pids of all processes started here that were not replaced."""
        return {one.child.pid for one in self._all}

    @property
    def hopeless(self) -> Supervised | None:
        """The part for which the start of the deployment has failed, if it has.

        A part other than a worker that ends by itself before it was ready will do so again; with
        workers it takes all of them.
        """
        for one in self._all:
            if one.failed and one.ended and self._nothing_else_for(one):
                return one
        return None

    def _nothing_else_for(self, one: Supervised) -> bool:
        return one.part.role != "worker" or all(worker.failed for worker in self.workers)

    def start(self, program: ServiceProgram) -> state.Part:
        """Start a service. Returns its entry for the state file.

        Raises:
            processes.StartError: its program cannot be run.
        """
        program.start()
        part = program.part()
        self._all.append(Supervised(program, part))
        self._followers[part.name] = logs.Follower(program.log)
        return part

    def adopt(self, program: Program, part: state.Part) -> None:
        """Watch a part that was started elsewhere and is ready."""
        one = Supervised(program, part, answer=readiness.Readiness(ready=True), ever_ready=True)
        one.restarts.ready(time.monotonic())
        self._all.append(one)

    def poll(self) -> None:
        """Handle ends, do the pending restarts, probe, and show new log lines."""
        for one in self._all:
            self._notice_end(one)
            self._restart_part(one)
            self._probe(one)
        self._follow()

    def _notice_end(self, one: Supervised) -> None:
        code = one.child.returncode
        if one.ended or code is None:
            return
        one.ended, one.ended_at = True, time.monotonic()
        one.answer = readiness.Readiness()
        one.part.exit_code, one.part.ready, one.part.detail = code, False, ""
        leftovers = one.child.sweep()
        swept = f" (it left {processes.count_text(leftovers)}, now ended)" if leftovers else ""
        message = f"{one.part.name} {describe_exit(code)}{swept}"
        if self.starting and code >= 0 and not one.ever_ready:
            one.failed = True
            if self._nothing_else_for(one):
                return  # the supervisor gives up and says why
        if self._restart:
            self._plan_restart(one, message)
        else:
            self._say(
                f"{message} and stays ended (--no-restart): {self._cure}. Log: {one.part.log}"
            )

    def _plan_restart(self, one: Supervised, reason: str) -> None:
        pause = one.restarts.ended(time.monotonic())
        plan = f"starts again in {pause:g} s"
        if one.restarts.explain:
            times = one.restarts.in_a_row
            self._say(f"{reason}, {times} times in a row; {plan}; {one.last_lines()}")
        else:
            self._say(f"{reason}; {plan}")
        keeps = f"keeps dying, {one.restarts.in_a_row} times in a row; "
        one.part.detail = f"{keeps if one.restarts.keeps_dying else ''}{plan}"

    def _restart_part(self, one: Supervised) -> None:
        due_at = one.restarts.due
        if due_at is None or time.monotonic() < due_at:
            return
        part = one.part
        try:
            one.program.start()
        except processes.StartError as error:
            self._plan_restart(one, str(error))
            return
        one.restarts.started()
        one.ended, one.next_probe = False, 0.0
        part.pid, part.started = one.child.identity.pid, one.child.identity.started
        part.last_exit, part.exit_code = part.exit_code, None
        part.restarts, part.since, part.detail = part.restarts + 1, time.time(), "starting"

    def _probe(self, one: Supervised) -> None:
        if one.ended or time.monotonic() < one.next_probe:
            return
        before, now = one.answer, one.program.ask()
        one.answer = now
        one.next_probe = time.monotonic() + (PROBE_RUNNING_S if now.ready else PROBE_STARTING_S)
        one.part.ready, one.part.detail = now.ready, now.detail or now.state
        if now.ready:
            one.part.detail = ""
            one.restarts.ready(time.monotonic())
            if not before.ready:
                self._became_ready(one)
        elif before.ready:
            self._note(f"{one.part.name} is not ready{f': {now.detail}' if now.detail else ''}")
        elif now != before and now.detail:
            self._note(f"{one.part.name}: {now.detail}")

    def _became_ready(self, one: Supervised) -> None:
        name, address = one.part.name, one.part.address
        where = f" at {address}" if address else ""
        if one.ended_at and one.part.restarts:
            elapsed_s = time.monotonic() - one.ended_at
            self._say(f"{name} is ready again{where}, {elapsed_s:.1f} s after its end")
            one.ended_at = 0.0
        else:
            self._note(f"{name} is ready{where}")
        one.ever_ready, one.failed = True, False

    def _follow(self) -> None:
        if self._show is None:
            return
        for name, follower in self._followers.items():
            for line in follower.lines():
                if line.strip():
                    self._show(f"{name:<10} | {logs.readable(line)}")

    def stop_services(self, hurry: Callable[[], bool]) -> None:
        """End all services, also those that joined: SIGTERM, a bounded wait, SIGKILL.

        `hurry` ends the wait early. What the services need (Redis, Kafka) is not ended.
        """
        services = self._with_role(*SERVICE_ROLES)
        joined_services = self._joined_services()
        for one in services:
            one.child.send(signal.SIGTERM)
        for stranger in joined_services:
            processes.send(stranger, signal.SIGTERM)
        deadline = time.monotonic() + SERVICE_GRACE_S
        while (
            any(one.child.returncode is None for one in services)
            or any(processes.alive(stranger) for stranger in joined_services)
        ) and not (time.monotonic() >= deadline or hurry()):
            self._follow()
            time.sleep(0.05)
        for one in services:
            if one.child.returncode is None:
                self._say(f"{one.part.name} did not stop by itself and is killed")
            one.child.stop(0)
        processes.end(self._joined_services)

    def _joined_services(self) -> list[processes.Identity]:
        """Processes with the deployment's mark that belong to no part of it."""
        own = {one.part.name for one in self._all}
        return [
            process.identity
            for process in processes.marked_in(self._folder)
            if process.part not in own
        ]
