"""Java, and Kafka's jars by the committed checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tailrace import settings
from tailrace.local import java, kafka_broker, paths, processes
from tailrace.local.console import Console
from tailrace.local.install_steps import InstallError, apt, run_logged


def has_java() -> bool:
    """Whether a Java that Kafka runs on is here."""
    try:
        java.find()
    except processes.StartError:
        return False
    return True


def install_java() -> None:
    """Install a Java runtime."""
    apt(
        "java",
        ["openjdk-17-jre-headless"],
        "no Java 17 or newer. Ask for: apt-get install openjdk-17-jre-headless; or set JAVA_HOME",
    )


def committed_sums() -> dict[str, str]:
    """Jar name -> sha256, as committed."""
    lines = (paths.ROOT / "locks" / "kafka-jars.sha256").read_text().splitlines()
    return {name: value for value, name in (line.split() for line in lines)}


def jars_present() -> bool:
    """Whether the folder has every jar of the list and no other. Contents are checked when the
    jars are fetched."""
    if settings.command().kafka or os.environ.get("KAFKA_HOME"):
        return True  # the user brings a broker
    folder = paths.jars()
    return folder.is_dir() and {jar.name for jar in folder.glob("*.jar")} == set(committed_sums())


def check_jars(folder: Path, sums: dict[str, str]) -> None:
    """Compare jars with their checksums.

    Raises:
        InstallError: a jar is missing, unexpected or altered; the text names them.
    """
    digests = {
        jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")
    }
    wrong = sorted(
        {name for name in digests.keys() | sums.keys() if digests.get(name) != sums.get(name)}
    )
    if wrong:
        raise InstallError(
            f"Kafka's jars are not those of locks/kafka-jars.sha256: {', '.join(wrong)}"
        )


def fetch_jars() -> None:
    """Fetch the jars with Maven and check them. Raises InstallError."""
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
            run_logged("kafka", command, environ=environ)
        except InstallError:
            run_logged(
                "kafka", command, environ=environ
            )  # a repository's hiccup; a second failure is one
        check_jars(fresh, committed_sums())
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def has_class_archive() -> bool:
    """Whether Kafka's classes are archived for a quick start, or need not be."""
    if settings.command().kafka or not paths.jars().is_dir():
        return True
    return kafka_broker.class_archive(java.find(), paths.jars()).exists()


def archive_classes() -> None:
    """Keep Kafka's classes for a quick start. A failure is only reported: a broker starts without
    them, but slower."""
    try:
        kafka_broker.make_class_archive()
    except processes.StartError as error:
        Console().line(f"  Kafka's classes are not kept, so it starts slower: {error}")
