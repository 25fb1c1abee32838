"""Paths: the source tree, installed files in the user's cache, and one deployment's data folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.3.1"
MODEL = "smollm2-135m-instruct"

ROOT = Path(__file__).resolve().parents[2]  # the source tree; site-packages in a wheel
# False in an installed wheel, which lacks the locks, the front end and the engine environment.
IN_SOURCE_TREE = (ROOT / "locks").is_dir()
ENGINE_ENVIRONMENT = ROOT / ".venv-engine"
FRONTEND = ROOT / "frontend"
PAGE = FRONTEND / "dist"
ADMIN_PAGE = FRONTEND / "dist-admin"  # shown by `tailrace pipelines serve`


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache folder for Tailrace. Every clone shares it; all of it can be made again."""
    base = environ.get("XDG_CACHE_HOME") or str(
        Path(environ.get("HOME") or "~").expanduser() / ".cache"
    )
    return Path(base) / "tailrace"


def jars(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of Kafka's jars: KAFKA_HOME/libs if set, else the one of `make install`."""
    if environ.get("KAFKA_HOME"):
        return Path(environ["KAFKA_HOME"]) / "libs"
    return cache(environ) / "kafka" / KAFKA_VERSION / "lib"


def model(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the default model."""
    return cache(environ) / "models" / MODEL


def trials() -> Path:
    """The folder of what trials of engines have shown (`worker.trials.field_trials`)."""
    return cache() / "engine-fields"


def default_data() -> Path:
    """The data folder without `--data`: TAILRACE_DATA, else one in the cache folder."""
    folder = os.environ.get("TAILRACE_DATA")
    return Path(folder) if folder else cache() / "data"


@dataclass(frozen=True, slots=True)
class Data:
    """The data folder of one deployment (`--data`)."""

    root: Path

    @property
    def marker(self) -> Path:
        """Marks a data folder. `up --wipe` refuses a folder without it."""
        return self.root / ".tailrace-data"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def kafka(self) -> Path:
        return self.root / "kafka"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def dev_key(self) -> Path:
        return self.root / "dev-key.pem"

    @property
    def issuers(self) -> Path:
        return self.root / "issuers.json"

    @property
    def credential(self) -> Path:
        """The page's development credential. The supervisor renews it, the gateway reads it."""
        return self.root / "dev-credential"

    @property
    def archive(self) -> Path:
        """The archive's database."""
        return self.root / "archive.sqlite3"

    @property
    def session_key(self) -> Path:
        """Seals the sessions of browsers."""
        return self.root / "session-key"

    def make(self) -> None:
        for folder in (self.root, self.kafka, self.redis, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)  # holds a signing key
        self.marker.touch()
