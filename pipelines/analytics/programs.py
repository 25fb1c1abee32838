"""Java, Flink's jars by the committed checksums, and the compiled programs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tailrace.local import java, paths, processes

FLINK: Final = "2.3.0"
HERE: Final = Path(__file__).parent
SUMS: Final = paths.ROOT / "locks" / "flink-jars.sha256"
FETCH_DEADLINE_S: Final = 900.0


class Missing(Exception):
    """Something is missing. The text says what, and how to install it."""


def jars() -> Path:
    """The folder of Flink's jars, in the user's cache."""
    return paths.cache() / "flink" / FLINK / "lib"


def locked_sums() -> dict[str, str]:
    """Jar name -> sha256, as committed."""
    return {name: value for value, name in (line.split() for line in SUMS.read_text().splitlines())}


def wrong_jars(folder: Path) -> list[str]:
    """Names of jars that are missing, unexpected or altered."""
    sums = locked_sums()
    digests = {
        jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")
    }
    return sorted(
        name for name in digests.keys() | sums.keys() if digests.get(name) != sums.get(name)
    )


def find_java() -> Path:
    """A Java program. Raises Missing."""
    try:
        return java.find()
    except processes.StartError as error:
        raise Missing(f"{error}") from error


def find_javac() -> Path:
    """A Java compiler: next to the Java program, else on the path. Raises Missing."""
    sibling = find_java().resolve().with_name("javac")
    path = str(sibling) if sibling.exists() else shutil.which("javac")
    if path is None:
        raise Missing("a Java compiler (apt-get install openjdk-17-jdk-headless, or JAVA_HOME)")
    return Path(path)


def ensure_jars() -> Path:
    """The folder of the jars; they are fetched with Maven if they are not there.

    Raises:
        Missing: there is no Maven, or what it fetched is not what was committed.
    """
    target = jars()
    if target.is_dir() and {jar.name for jar in target.glob("*.jar")} == set(locked_sums()):
        return target  # contents were checked when they were fetched
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("Maven, which fetches Flink (apt-get install maven)")
    fresh = target.with_name(f".lib.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    command = [maven, "-q", "-B", "-C", "-f", str(paths.ROOT / "locks" / "flink" / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={fresh}"]
    environ = {**os.environ, "JAVA_HOME": str(find_java().resolve().parent.parent)}
    try:
        process = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=FETCH_DEADLINE_S
        )
        if process.returncode:
            raise Missing(f"Flink's jars: {(process.stdout + process.stderr)[-2000:]}")
        if wrong := wrong_jars(fresh):
            raise Missing(f"Flink's jars are not those of {SUMS.name}: {', '.join(wrong)}")
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def compile_main(into: Path) -> Path:
    """Compile `Main.java` and what it uses; returns the folder of its classes. Raises Missing."""
    into.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [find_javac(), "-cp", f"{ensure_jars()}/*", "-d", into]
    command += sorted(HERE.glob("*.java"))
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if process.returncode:
        raise Missing(f"the programs in Java do not compile: {process.stderr[-2000:]}")
    return into
