"""A real PostgreSQL in a temporary folder, on a free port of 127.0.0.1.

It refuses to run as root, so that root gives it another user. Nothing of it is written through to
the disk: it goes away with the tests."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg

from scripts import test_tools
from tailrace.local import ports

START_S = 30.0
SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")


def _as_user() -> tuple[list[str], str]:
    """What stands before a command, and the user that runs it."""
    if os.geteuid() != 0:
        return [], pwd.getpwuid(os.geteuid()).pw_name
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in known else "nobody"
    entry = pwd.getpwnam(user)
    return [
        "setpriv",
        f"--reuid={entry.pw_uid}",
        f"--regid={entry.pw_gid}",
        "--clear-groups",
        "--pdeathsig=KILL",
        "--",
    ], user


def installed() -> bool:
    """Whether this machine has the server."""
    return test_tools.postgres("initdb") is not None


class LocalPostgres:
    """The server. `new_database` makes a database for each test that asks for one."""

    def __init__(self) -> None:
        self._before, self._user = _as_user()
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-postgres-"))
        self._data = self._folder / "data"
        self._port = ports.free_port()
        self._server: subprocess.Popen[bytes] | None = None

    def _program(self, name: str) -> str:
        found = test_tools.postgres(name)
        assert found is not None, "PostgreSQL is not installed (make install)"
        return str(found)

    def _run(self, *command: str) -> None:
        subprocess.run(
            [*self._before, *command], check=True, capture_output=True, timeout=60, cwd="/"
        )

    def __enter__(self) -> Self:
        self._data.mkdir()
        if self._before:
            self._folder.chmod(0o755)
            shutil.chown(self._data, self._user)
        self._run(
            self._program("initdb"),
            *("-D", str(self._data), "-U", "tailrace", "--auth=trust", "--no-sync", "-E", "UTF8"),
            "--locale=C",
        )
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def start(self) -> None:
        """Start it and wait until it answers; also after `kill`, on the same port with what it
        had. The processes of a killed server may hold it up for a moment."""
        give_up = time.monotonic() + START_S
        while True:
            if self._server is None or self._server.poll() is not None:
                self._server = self._launched()
            ready = subprocess.run(
                [self._program("pg_isready"), "-h", "127.0.0.1", "-p", str(self._port)],
                capture_output=True,
                check=False,
            )
            if not ready.returncode:
                return
            assert time.monotonic() < give_up, "PostgreSQL did not start"
            time.sleep(0.05)

    def _launched(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    *self._before,
                    *(self._program("postgres"), "-D", str(self._data), "-p", str(self._port)),
                    *("-h", "127.0.0.1", "-k", ""),
                    *(part for setting in SETTINGS for part in ("-c", setting)),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
            )

    def kill(self) -> None:
        """SIGKILL of the server; the processes of its connections follow it."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            try:
                self._server.wait(10)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Of the server, without a database."""
        return f"postgresql://tailrace@127.0.0.1:{self._port}"


async def new_database(url: str) -> str:
    """The URL of a new, empty database of a server (`LocalPostgres.url`)."""
    name = f"archive_{secrets.token_hex(8)}"
    connection = await asyncpg.connect(f"{url}/postgres")
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return f"{url}/{name}"
