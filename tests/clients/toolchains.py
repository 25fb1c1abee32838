"""How clients of each language are locked, installed, compiled and started.

No registry's address is in a lock: each is asked by its ordinary client.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, Protocol

from pipelines.analytics import programs

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
INSTALL_S: Final = 1_800  # openai-go takes minutes of CPU to compile
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_MODULE: Final = re.compile(r"^\s*(?:require\s+)?(\S+)\s+v(\S+)$", re.MULTILINE)
_ARTIFACT: Final = re.compile(
    r"<artifactId>([^<]+)</artifactId>\s*<version>([^<]+)</version>\s*</dependency>"
)
_NPM_QUIET: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")


class Toolchain(Protocol):
    """`folder`: a client's, beside this file. `made`: its environment.

    Attributes:
        requirements: the file of a client's folder that says what it asks for.
        lock: the file with exact versions and checksums of all that this needs.
    """

    requirements: str
    lock: str

    def resolve(self, folder: Path) -> None:
        """Write the lock anew."""

    def install(self, folder: Path, made: Path) -> None:
        """Fill the empty folder `made` with what is locked."""

    def build(self, folder: Path, made: Path) -> list[str]:
        """Compile the client's script. Returns the command that runs it in the folder `made`."""

    def versions(self, folder: Path) -> dict[str, str]:
        """The packages that the client asks for, as locked."""


class Python:
    requirements = "requirements.in"
    lock = "requirements.lock"
    _uv = str(ROOT / ".tools" / "bin" / "uv")

    def resolve(self, folder: Path) -> None:
        options = "--quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url"
        target = (f"{folder.name}/{self.requirements}", "-o", f"{folder.name}/{self.lock}")
        _call(self._uv, "pip", "compile", *options.split(), "--no-header", "--upgrade", *target)

    def install(self, folder: Path, made: Path) -> None:
        _call(self._uv, "venv", "--quiet", "--python", sys.executable, str(made))
        python = ("--python", str(made / "bin" / "python"))
        locked = str(folder / self.lock)
        _call(self._uv, "pip", "sync", "--quiet", "--require-hashes", *python, locked)

    def build(self, folder: Path, made: Path) -> list[str]:
        return [str(made / "bin" / "python"), str(folder / "client.py")]

    def versions(self, folder: Path) -> dict[str, str]:
        pinned = dict(_PIN.findall((folder / self.lock).read_text()))
        wanted = (folder / self.requirements).read_text().split()
        names = [line.partition("[")[0] for line in wanted]
        return {name: pinned[name] for name in names}


class Node:
    requirements = "package.json"  # with exact versions
    lock = "package-lock.json"

    def resolve(self, folder: Path) -> None:
        (folder / self.lock).unlink(missing_ok=True)
        bare = ("--package-lock-only", "--omit-lockfile-registry-resolved=true")
        _call("npm", "install", *bare, *_NPM_QUIET, cwd=folder)

    def install(self, folder: Path, made: Path) -> None:
        for name in (self.requirements, self.lock):
            shutil.copy(folder / name, made)
        _call("npm", "ci", *_NPM_QUIET, cwd=made)

    def build(self, folder: Path, made: Path) -> list[str]:
        """With the Node of its lock, where it has one."""
        # A module is looked for beside the file that imports it.
        for script in (folder / "client.mjs", HERE / "scenarios.mjs"):
            shutil.copy(script, made)
        nodes = sorted(made.glob("node_modules/node-linux-*/bin/node"))
        return [str(nodes[0]) if nodes else "node", "--no-warnings", "client.mjs"]

    def versions(self, folder: Path) -> dict[str, str]:
        asked = json.loads((folder / self.requirements).read_text())
        return dict(asked["dependencies"])


class Go:
    requirements = "go.mod"  # with exact versions
    lock = "go.sum"

    def resolve(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            self._copy(folder, Path(scratch))
            _call("go", "mod", "tidy", cwd=Path(scratch))
            for name in (self.requirements, self.lock):
                shutil.copy(Path(scratch) / name, folder)

    def install(self, folder: Path, made: Path) -> None:
        self._copy(folder, made)
        _call("go", "mod", "download", cwd=made)

    def build(self, folder: Path, made: Path) -> list[str]:
        self._copy(folder, made)
        _call("go", "build", "-mod=readonly", "-o", "client", ".", cwd=made)
        return [str(made / "client")]

    def versions(self, folder: Path) -> dict[str, str]:
        """By the last part of a module's path that is no version."""
        modules = _MODULE.findall((folder / self.requirements).read_text())
        return {
            re.sub(r"/v\d+$", "", path).rpartition("/")[2]: version for path, version in modules
        }

    def _copy(self, folder: Path, made: Path) -> None:
        for file in (*folder.glob("go.*"), folder / "client.go", HERE / "scenarios.go"):
            shutil.copy(file, made)


class Java:
    """Maven fetches jars; their checksums are ours. The compiler is the machine's."""

    requirements = "pom.xml"  # with exact versions
    lock = "jars.sha256"

    def resolve(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            (folder / self.lock).write_text(self._fetched(folder, Path(scratch)))

    def install(self, folder: Path, made: Path) -> None:
        fetched = self._fetched(folder, made / "lib")
        if fetched != (folder / self.lock).read_text():
            raise RuntimeError(
                f"the jars of {folder.name} are not those of {self.lock}:\n{fetched}"
            )

    def build(self, folder: Path, made: Path) -> list[str]:
        classes = f"{made}/lib/*:{made}/classes"
        sources = (str(folder / "Client.java"), str(HERE / "Scenarios.java"))
        javac = (
            str(programs.find_javac()),
            "-encoding",
            "UTF-8",
            "-Xlint:all,-processing,-path",
            "-Werror",
        )
        _call(*javac, "-cp", classes, "-d", str(made / "classes"), *sources)
        return [str(programs.find_java()), "-cp", classes, "Client"]

    def versions(self, folder: Path) -> dict[str, str]:
        return dict(_ARTIFACT.findall((folder / self.requirements).read_text()))

    def _fetched(self, folder: Path, into: Path) -> str:
        """The lines of the lock for what Maven puts into the folder `into`."""
        copy = ("dependency:copy-dependencies", "-DincludeScope=runtime")
        _call(
            *("mvn", "-q", "-B", "-C", "-f", str(folder / self.requirements), *copy),
            f"-DoutputDirectory={into}",
            JAVA_HOME=str(programs.find_java().resolve().parent.parent),
        )
        jars = sorted(into.glob("*.jar"))
        return "".join(f"{hashlib.sha256(j.read_bytes()).hexdigest()}  {j.name}\n" for j in jars)


ALL: Final[tuple[Toolchain, ...]] = (Python(), Node(), Go(), Java())


def _call(*command: str, cwd: Path = HERE, **environment: str) -> None:
    subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        check=True,
        timeout=INSTALL_S,
        stdin=subprocess.DEVNULL,
    )
