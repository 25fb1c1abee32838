"""Command lines that messages show to the user: the ones that work for this deployment.

A command line names the data folder, and the start also ports and engine, where they differ from
the defaults.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tailrace import engines
from tailrace.local import paths, plan, ports, processes, state


def program() -> str:
    """The path of this command, relative to the working directory where that is possible."""
    path = Path(sys.executable).parent / "tailrace"
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def command(words: str, data: paths.Data) -> str:
    """`tailrace WORDS`, for this data folder."""
    folder = "" if data.root == paths.default_data() else f" --data {shlex.quote(str(data.root))}"
    return f"{program()} {words}{folder}"


def up(data: paths.Data, running: state.State | None = None) -> str:
    """`tailrace up` as the deployment of this folder was started last."""
    words = ["up"]
    default = plan.Options()
    if running and running.engine and running.engine != engines.DEFAULT:
        words += ["--engine", shlex.quote(running.engine)]
    for option, url, usual in (
        ("--port", running.url if running else "", default.port),
        ("--push-port", next(iter(running.push_urls), "") if running else "", default.push_port),
    ):
        port = urlsplit(url).port
        if port and port != usual:
            words += [option, str(port)]
    return command(" ".join(words), data)


def free_ports_hint(data: paths.Data) -> str:
    """A start in this data folder whose ports are free now, by this command and by make."""
    used_ports: set[int] = set()

    def next_free(first: int) -> int:
        number = next(
            port
            for port in range(first, 65_536)
            if port not in used_ports and ports.port_is_free(port)
        )
        used_ports.add(number)
        return number

    default = plan.Options()
    options = (
        f"--port {next_free(default.port + 10)} --push-port {next_free(default.push_port + 10)}"
    )
    if data.root != paths.default_data():
        options += f" --data {shlex.quote(str(data.root))}"
    return f"`{program()} up {options}`, or `make up ARGS={shlex.quote(options)}`"


def holder(port: int) -> str:
    """ " by …": who listens on this port, if this user may see it, and how to stop it if it is
    another deployment. Empty if it is unknown."""
    pid = ports.listener(port)
    if pid is None:
        return ""
    folder = processes.data_folder(pid)
    if folder:
        other_data = paths.Data(Path(folder))
        return f" by the deployment in {folder} (`{command('down', other_data)}` stops it)"
    return f" by process {pid} ({processes.command(pid)[:80]})"
