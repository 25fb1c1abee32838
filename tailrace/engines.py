"""The engine table (pure): one row for each engine.

The worker reads it to load an engine, the settings to check TAILRACE_ENGINE, the plan to choose a
Python environment, and the installation to know what to install. A new engine is a row here and a
module in `worker/engines/` with `create(settings)`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit


class Environment(enum.Enum):
    """The Python environment that the worker of an engine runs in."""

    SERVICES = "services"  # .venv, the one of all services
    ENGINE = "engine"  # .venv-engine, installed for this engine alone


class ModelFrom(enum.Enum):
    """Where an engine gets its model."""

    FILES = "files"  # a folder or a hub name; the worker needs one
    SERVER = "server"  # the server at the engine's URL offers models by name
    NOWHERE = "nowhere"  # it needs none


@dataclass(frozen=True, slots=True)
class Kind:
    """One engine.

    Attributes:
        name: the value of TAILRACE_ENGINE and --engine. Empty: the value is an http(s) URL.
        module: the Python module that has `create(settings)`. Only the worker imports it.
        environment: where its worker runs.
        model_from: where its model comes from.
        max_num_seqs: default of TAILRACE_MAX_NUM_SEQS, responses at once.
    """

    name: str
    module: str
    environment: Environment
    model_from: ModelFrom
    max_num_seqs: int


VLLM: Final = Kind("vllm", "worker.engines.vllm", Environment.ENGINE, ModelFrom.FILES, 32)
SCRIPTED: Final = Kind(
    "scripted", "worker.engines.scripted", Environment.SERVICES, ModelFrom.NOWHERE, 64
)
OPENAI: Final = Kind("", "worker.engines.openai", Environment.SERVICES, ModelFrom.SERVER, 64)

TABLE: Final = (VLLM, SCRIPTED, OPENAI)
DEFAULT: Final = VLLM.name
NAMES: Final = tuple(kind.name for kind in TABLE if kind.name)
CHOICES: Final = f"{', '.join(NAMES)}, or the http(s) URL of an OpenAI-compatible server"


class UnknownEngine(ValueError):
    """The text is for the user."""

    def __init__(self, engine: str) -> None:
        super().__init__(f"{engine!r} is not an engine: {CHOICES}")


def find(engine: str) -> Kind:
    """The engine that a value of TAILRACE_ENGINE or --engine means.

    Raises:
        UnknownEngine: it is neither a name of the table nor an http(s) URL.
    """
    for kind in TABLE:
        if kind.name and kind.name == engine:
            return kind
    try:
        parts = urlsplit(engine)
    except ValueError as error:  # for example an IPv6 address without its bracket
        raise UnknownEngine(engine) from error
    if parts.scheme in ("http", "https") and parts.hostname:
        return OPENAI
    raise UnknownEngine(engine)
