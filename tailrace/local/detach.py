"""`up --detach`: start the supervisor in a session of its own and wait until it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tailrace.local import logs, paths, state
from tailrace.local.console import Console

POLL_S = 0.1


def start_detached(
    arguments: Sequence[str], data: paths.Data, *, wait: bool, console: Console
) -> int:
    """Start `tailrace supervise ARGUMENTS` and pass its output to `console`.

    Returns an exit code: 0 once it is ready (`wait`) or serves, else the supervisor's.

    The supervisor and all its children get a new session, because the kernel's scheduler shares CPU
    time between sessions.
    """
    data.make()
    log = data.logs / "up.log"
    log.unlink(missing_ok=True)
    with log.open("ab") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "supervise", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ.copy(),
        )
    follower = logs.Follower(log)
    states = ("ready",) if wait else ("serving", "ready")
    try:
        while True:
            ended = supervisor.poll()
            running = state.load(data.state)
            for line in follower.lines():
                console.line(line)
            if ended is not None:
                return ended or 1  # it ends before it is ready only when it failed
            if running and running.supervisor.pid == supervisor.pid and running.phase in states:
                return 0
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        console.line("stopping")
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()
        return 130
