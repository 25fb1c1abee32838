"""Child processes that cannot outlive their supervisor, and the means to find what is left when it
died all the same.

Three nets, because each has a hole: the kernel's parent-death signal (set anew in every child, not
inherited by grandchildren), the subreaper (orphaned grandchildren come to the supervisor, as long
as it lives), and a mark in the environment that every descendant inherits (found by `tailrace down`
after everything else failed). A pid alone identifies nobody: it is kept with its start time.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

RUN_MARK = "TAILRACE_RUN"
PART_MARK = "TAILRACE_PART"

_libc = ctypes.CDLL(None, use_errno=True)
_PROC = Path("/proc")


class StartError(Exception):
    """A part could not be started; the text says which and what to do."""


def become_subreaper() -> None:
    """Orphaned descendants become children of this process instead of init's (Linux 3.4)."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _die_with(parent: int, signum: int) -> Callable[[], None]:
    """A pre-exec step; everything it needs is made before the fork, since another thread may hold
    any lock at that moment."""
    prctl, getppid, leave = _libc.prctl, os.getppid, os._exit

    def step() -> None:
        prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if getppid() != parent:  # the parent died before prctl took effect
            leave(1)

    return step


@dataclass(frozen=True, slots=True)
class Identity:
    """A process for certain: its pid and the clock tick it started at (a reused pid has
    another)."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    comm: str
    state: str
    parent: int
    started: int


def stat(pid: int) -> Stat | None:
    """None when there is no such process (any more)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return parse_stat(text)


def parse_stat(text: str) -> Stat:
    """The name stands in parentheses and may itself hold spaces and parentheses: cut at the last
    one (proc(5))."""
    head, _, rest = text.rpartition(")")
    pid, _, comm = head.partition(" (")
    fields = rest.split()
    return Stat(
        pid=int(pid), comm=comm, state=fields[0], parent=int(fields[1]), started=int(fields[19])
    )


def identity(pid: int) -> Identity | None:
    found = stat(pid)
    return Identity(pid, found.started) if found else None


def alive(who: Identity) -> bool:
    """True while exactly this process runs; a zombie is dead."""
    found = stat(who.pid)
    return found is not None and found.started == who.started and found.state not in "ZX"


def send(who: Identity, signum: int) -> bool:
    """Signal exactly this process: the pidfd pins it, so a pid reused between look and signal is
    never hit."""
    try:
        fd = os.pidfd_open(who.pid)
    except OSError:
        return False
    try:
        if not alive(who):
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def marked(run: str, part: str | None = None) -> list[Identity]:
    """Every process that carries this run's mark (and that part's), grandchildren and orphans
    included."""
    wanted = f"{RUN_MARK}={run}".encode()
    also = None if part is None else f"{PART_MARK}={part}".encode()
    found = []
    for pid in _pids():
        who = identity(pid)
        try:
            environ = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if who and wanted in environ and (also is None or also in environ) and pid != os.getpid():
            found.append(who)
    return found


def descendants(root: int) -> list[Stat]:
    """All living processes below `root`, nearest first."""
    stats = [found for pid in _pids() if (found := stat(pid)) and found.state not in "ZX"]
    below: list[Stat] = []
    level = {root}
    while level:
        children = [entry for entry in stats if entry.parent in level]
        below += children
        level = {entry.pid for entry in children}
    return below


def command(pid: int) -> str:
    """The command line as shown by ps; empty when the process is gone."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def sweep(run: str, part: str | None = None, *, grace: float = 0.0) -> list[Identity]:
    """End whatever still carries the mark: SIGTERM and `grace` seconds first when asked, then
    SIGKILL. Returns what was found."""
    found = marked(run, part)
    if grace and found:
        for who in found:
            send(who, signal.SIGTERM)
        wait_gone(found, grace)
    everything = list(found)
    for _ in range(20):  # a process may fork between look and kill
        left = [who for who in marked(run, part) if alive(who)]
        if not left:
            break
        everything += [who for who in left if who not in everything]
        for who in left:
            send(who, signal.SIGKILL)
        wait_gone(left, 1.0)
    return everything


def wait_gone(who: Sequence[Identity], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(one) for one in who):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _children() -> list[int]:
    """Direct children of this process, without a walk through all of /proc (Linux built with
    PROC_CHILDREN, as distributions are)."""
    found: list[int] = []
    for task in (_PROC / "self" / "task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def reap_orphans(known: set[int]) -> list[Identity]:
    """As subreaper: kill and reap orphans that came to us (`known`: our own children, whose exit
    status belongs to their `Child`)."""
    met = []
    for pid in _children():
        entry = stat(pid)
        if pid in known or entry is None:
            continue
        if entry.state not in "ZX":
            who = Identity(pid, entry.started)
            send(who, signal.SIGKILL)
            met.append(who)
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass
    return met


def listener(port: int) -> int | None:
    """Pid of the process that listens on this port, when /proc shows it to this user."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:  # 0A: LISTEN
                inodes.add(f"socket:[{fields[9]}]")
    for pid in _pids():
        try:
            if any(os.readlink(fd) in inodes for fd in (_PROC / str(pid) / "fd").iterdir()):  # noqa: PTH115 - the target is no path
                return pid
        except OSError:
            continue
    return None


class Child:
    """One started program: in a process group of its own (so that a terminal's Ctrl-C reaches the
    supervisor alone) but in the supervisor's session (a session of its own would be scheduled as a
    group of its own, and starve), output in a file, dying with the supervisor. Start it from the
    main thread only: the kernel's signal follows the thread that forked.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: Path,
        run: str,
        cwd: Path | None = None,
        death_signal: int = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.run = run
        log.parent.mkdir(parents=True, exist_ok=True)
        marks = {RUN_MARK: run, PART_MARK: name}
        with log.open("ab") as output:
            self.log_start = output.tell()  # what this process wrote begins here
            try:
                self._popen = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**environ, **marks},
                    cwd=cwd,
                    process_group=0,
                    preexec_fn=_die_with(os.getpid(), death_signal),
                )
            except OSError as error:
                raise StartError(
                    f"{name}: cannot run {self.command[0]}: {error.strerror}"
                ) from error
        found = identity(self._popen.pid)
        self.identity = found or Identity(self._popen.pid, 0)
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal number when one ended it."""
        return self._popen.poll()

    def send(self, signum: int) -> None:
        if self.returncode is None:
            self._popen.send_signal(signum)

    def wait(self, seconds: float) -> int | None:
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace: float) -> int:
        """SIGTERM, `grace` seconds, SIGKILL; then whatever it left behind. Blocks."""
        self.send(signal.SIGTERM)
        code = self.wait(grace)
        if code is None:
            self.send(signal.SIGKILL)
            code = self._popen.wait()
        self.sweep()
        return code

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._popen.wait()

    def sweep(self) -> list[Identity]:
        return sweep(self.run, self.name)

    def output(self) -> str:
        """What this process has written so far."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read().decode(errors="replace")

    def last_lines(self, count: int) -> str:
        return "\n".join(self.output().splitlines()[-count:])


class Server:
    """One server program on one port; `start` and `stop` or `kill` may alternate.

    Attributes:
        title, start_seconds, stop_seconds, shown_lines: what its messages call it, how long it may
        take, how much of its output they show. child: None before start() and after stop() or
        kill().
    """

    title: ClassVar[str]
    start_seconds: ClassVar[float]
    stop_seconds: ClassVar[float]
    shown_lines: ClassVar[int] = 50

    def __init__(self, folder: Path, port: int, *, run: str, log: Path) -> None:
        self.folder = folder
        self.port = port
        self.run = run
        self.log = log
        self.child: Child | None = None

    def start(self) -> None:
        """Start the process; it may be ready some seconds later (`ready`)."""
        raise NotImplementedError

    def serves(self, child: Child) -> bool:
        """Whether its port answers, and it is this process that does."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it serves; raises StartError when it ended instead."""
        assert self.child is not None, "start() comes first"
        if self.child.returncode is not None:
            raise StartError(
                f"{self.title} ended with exit code {self.child.returncode}; "
                f"{self._said(self.child)}"
            )
        return self.serves(self.child)

    def wait_ready(self, seconds: float | None = None) -> None:
        limit = self.start_seconds if seconds is None else seconds
        deadline = time.monotonic() + limit
        while not self.ready():
            if time.monotonic() >= deadline:
                assert self.child is not None
                raise StartError(
                    f"{self.title} was not ready after {limit:.0f} s; {self._said(self.child)}"
                )
            time.sleep(0.05)

    def stop(self, grace: float | None = None) -> None:
        if self.child:
            self.child.stop(self.stop_seconds if grace is None else grace)
            self.child = None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.child:
            self.child.kill()
            self.child = None

    def _said(self, child: Child) -> str:
        return f"its last lines:\n{child.last_lines(self.shown_lines)}"


FIRST_PORT = 20_000  # below every common range of outgoing connections, above the usual services
CLAIM_SECONDS = 60.0  # from when a port was given until its server must have bound it

_claims: dict[
    int, tuple[socket.socket, float]
] = {}  # ports this process was given, each with what claims it and until when (monotonic seconds)


def free_port(taken: set[int] | None = None, following: int = 0) -> int:
    """A port that nobody has just now, nor any of the `following` ones after it, and none of them
    in `taken`.

    Chosen below the kernel's range for outgoing connections: a port of that range can be taken by
    anybody's connection between this look and the server's bind. Nor is it given to another process
    for a while: two deployments that start together would not see each other's port until it is
    bound, seconds later."""
    last = min(_first_outgoing_port(), 65_535) - following
    span = range(FIRST_PORT, last) if last - FIRST_PORT > 1000 else range(1024, 65_535 - following)
    while True:
        first = random.choice(span)
        block = range(first, first + following + 1)
        if (
            not set(block) & (taken or set())
            and all(port_is_free(p) for p in block)
            and _claimed(block)
        ):
            return first


def claim(port: int) -> bool:
    """Whether this port is free and nobody else's for a while: for whoever wants just this one."""
    return port_is_free(port) and (port in _claims or _claimed(range(port, port + 1)))


def _claimed(block: Sequence[int]) -> bool:
    """Whether all of them are this caller's now. A name in the kernel (abstract, unix(7)) claims a
    port: it is gone with its process."""
    now = time.monotonic()
    for port in [port for port, (_, until) in _claims.items() if until <= now]:
        _claims.pop(port)[0].close()
    claims: dict[int, tuple[socket.socket, float]] = {}
    for port in block:
        name = socket.socket(socket.AF_UNIX)
        claims[port] = name, now + CLAIM_SECONDS
        try:
            name.bind(f"\0tailrace-port-{port}")
        except OSError:
            for taken, _ in claims.values():
                taken.close()
            return False
    _claims.update(claims)
    return True


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # Linux's default


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False
