"""Children that cannot outlive their parent, and the search for what is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.local import paths, processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

# A child that starts a grandchild and tells its pid, then waits.
PARENT = [
    sys.executable,
    "-c",
    (
        "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); "
        "time.sleep(60)"
    ),
]


def start(command: list[str], tmp_path: Path, name: str = "part", run: str = "") -> processes.Child:
    return processes.Child(
        name,
        command,
        environ=os.environ,
        log=tmp_path / f"{name}.log",
        run=run or f"unit-{os.getpid()}-{tmp_path.name}",
    )


def grandchild(child: processes.Child) -> processes.Identity:
    deadline = time.monotonic() + 20
    while not child.output().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = processes.identity(int(child.output()))
    assert found
    return found


@pytest.mark.parametrize("comm", ["python", "a b", "odd) S 1 (name", "((("])
def test_a_process_name_with_parentheses_and_spaces_does_not_shift_the_fields(comm: str) -> None:
    fields = ["S", "7", *["0"] * 17, "12345", *["0"] * 30]
    found = processes.parse_stat(f"42 ({comm}) {' '.join(fields)}\n")
    assert found == processes.Stat(pid=42, comm=comm, state="S", parent=7, started=12345)


def test_a_reused_pid_is_not_the_process_that_was_recorded(tmp_path: Path) -> None:
    child = start(SLEEP, tmp_path)
    try:
        stranger = processes.Identity(child.pid, child.identity.started - 1)
        assert processes.alive(child.identity)
        assert not processes.alive(stranger)
        assert not processes.send(stranger, signal.SIGKILL)
        assert child.returncode is None
    finally:
        child.stop(0)


def test_stop_ends_the_child_politely_and_everything_it_started(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    below = grandchild(child)
    assert child.stop(10) == -signal.SIGTERM
    assert not processes.alive(below)


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(60)"
    )
    child = start([sys.executable, "-c", script], tmp_path)
    while "deaf" not in child.output():
        time.sleep(0.02)
    assert child.stop(0.2) == -signal.SIGKILL


def test_what_a_killed_child_leaves_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    below = grandchild(child)
    child.kill()
    assert processes.alive(below)
    assert child.sweep() == [below]
    assert not processes.alive(below)


def test_a_sweep_of_one_part_leaves_the_others_alone(tmp_path: Path) -> None:
    run = f"unit-{os.getpid()}-two"
    one, other = start(SLEEP, tmp_path, "one", run), start(SLEEP, tmp_path, "other", run)
    try:
        processes.sweep(run, "one")
        assert one.wait(5) == -signal.SIGKILL
        assert other.returncode is None
    finally:
        processes.sweep(run)
        assert other.wait(5) == -signal.SIGKILL


def test_a_child_is_in_our_session_but_in_a_process_group_of_its_own(tmp_path: Path) -> None:
    """Its own session would be scheduled as a group of its own; our process group would get the
    terminal's Ctrl-C."""
    child = start(SLEEP, tmp_path)
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid
    finally:
        child.stop(0)


def test_a_child_dies_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time\n"
        "from tailrace.local import processes\n"
        f"log = pathlib.Path({str(tmp_path / 'inner.log')!r})\n"
        "child = processes.Child('inner', ['sleep', '60'], environ=os.environ, log=log, run='unit-inner')\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = start([sys.executable, "-c", script], tmp_path)
    inner = grandchild(parent)
    parent.kill()
    assert processes.wait_gone([inner], 10)


def test_descendants_are_found_to_any_depth(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    try:
        below = grandchild(child)
        assert [found.pid for found in processes.descendants(child.pid)] == [below.pid]
        assert below.pid in {found.pid for found in processes.descendants(os.getpid())}
    finally:
        child.stop(0)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(processes.StartError, match=r"part: cannot run /no/such/program"):
        start(["/no/such/program"], tmp_path)


def test_output_is_that_of_this_process_not_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("old\n")
    child = start([sys.executable, "-c", "print('new')"], tmp_path)
    assert child.wait(20) == 0
    assert child.output() == "new\n"
    assert child.last_lines(5) == "new"


def test_who_listens_on_a_port_is_found() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not processes.port_is_free(port)
        assert processes.accepts(port)
        assert processes.listener(port) == os.getpid()
    assert processes.port_is_free(port)
    assert processes.listener(port) is None


def test_a_free_port_is_below_those_of_outgoing_connections_and_its_followers_are_free() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = processes.free_port(following=4)
    assert first + 4 < low
    assert all(processes.port_is_free(p) for p in range(first, first + 5))


def test_a_block_of_ports_with_one_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([25_000, 25_002, 25_010])
    monkeypatch.setattr("random.choice", lambda _: next(drawn))
    monkeypatch.setattr(processes, "port_is_free", lambda port, host="": port != 25_003)
    assert processes.free_port({25_000}, following=2) == 25_010


def test_a_port_is_given_to_one_process_until_its_server_must_have_bound_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two deployments that start together both look before either binds."""
    first = processes.free_port(following=3)
    draw = f"choice, drawn = random.choice, iter([{first}, {first + 3}, {first - 1}]); random.choice = lambda span: next(drawn, None) or choice(span)"
    ask = f"import random; from tailrace.local import processes; {draw}; print(processes.free_port(following=1))"
    other = int(
        subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    )
    assert {other, other + 1}.isdisjoint(range(first, first + 4))
    monkeypatch.setattr(processes, "CLAIM_SECONDS", 0.0)
    unused = processes.free_port()
    monkeypatch.setattr("random.choice", lambda _: unused)
    assert processes.free_port() == unused, "nobody came"


def test_the_port_somebody_wants_is_claimed_too_until_its_server_has_bound_it() -> None:
    """Symptom: two deployments found 6379 free at once, and one went on with the other's Redis."""
    port = processes.free_port()
    code = f"from tailrace.local import processes; print(processes.claim({port}))"
    assert processes.claim(port), "it is this process's already"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=paths.ROOT
    )
    assert other.stdout == "False\n"
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not processes.claim(port), "somebody has it"
