"""From options to processes (pure): the services, their ports and their settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tailrace import engines
from tailrace.settings.catalog import Catalog

Role = Literal["gateway", "push", "worker", "archive"]

HOST = "127.0.0.1"
POOL = "default"
MAX_MODEL_LEN = 8192


# A process title must not overwrite the environment: `tailrace down` finds its processes by a
# variable in it.
_WORKER_ENVIRONMENT: Final = {"SPT_NOENV": "1"}


class BadOption(ValueError):
    """An option that cannot be used. The text is for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options. An empty `model` is the default of the engine."""

    engine: str = engines.DEFAULT
    model: str = ""
    workers: int = 1
    gateways: int = 1
    pushes: int = 1
    port: int = 8000
    push_port: int = 8001

    def check(self) -> None:
        """Check every option.

        Raises:
            BadOption: one is out of range, or two contradict each other.
        """
        engine_kind(self.engine)
        for name, value, least in (
            ("workers", self.workers, 0),
            ("gateways", self.gateways, 1),
            ("pushes", self.pushes, 1),
        ):
            if not least <= value <= 32:
                raise BadOption(f"--{name} {value}: from {least} to 32")
        for name, value in (("port", self.port), ("push-port", self.push_port)):
            if not 1 <= value <= 65_535:
                raise BadOption(f"--{name} {value}: from 1 to 65535")
        if self.port == self.push_port:
            raise BadOption(f"--port and --push-port are both {self.port}")


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it is served.

    Attributes:
        source: what the engine loads: a folder, a hub name, or a name at the engine's URL.
        name: what clients call it.
        max_len: the context, in tokens.
        temperature: for requests that name none.
        top_p: for requests that name none.
    """

    source: str
    name: str
    max_len: int = MAX_MODEL_LEN
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Addresses, files and programs that every service needs."""

    kafka: str
    redis: str
    issuers: Path
    credential: Path
    session_key: Path
    archive: str  # its database's URL
    trials: Path
    page: Path | None
    python: Path  # the services' environment
    engine_python: Path  # the model engine's


@dataclass(frozen=True, slots=True)
class Service:
    """One service process to start. It answers /ready on `admin_port`."""

    name: str
    role: Role
    python: Path
    port: int  # 0: it has no clients
    admin_port: int
    environ: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        return [str(self.python), "-m", module(self.role)]

    @property
    def address(self) -> str:
        return url(self.port) if self.port else ""

    @property
    def probe(self) -> str:
        return f"{url(self.admin_port)}/ready"


def module(role: Role) -> str:
    """What Python runs for a service."""
    return "tailrace.archiver" if role == "archive" else role


def archive_url(path: Path, environ: Mapping[str, str]) -> str:
    """TAILRACE_ARCHIVE: that of the environment, or else this file."""
    return environ.get("TAILRACE_ARCHIVE") or f"sqlite:///{path}"


def replaced(services: Sequence[Service], environ: Mapping[str, str]) -> list[str]:
    """Names of settings in the environment that the services do not get, in order."""
    edge = next(one for one in services if one.role == "gateway")
    # The file of pools has another form there, and workers have settings of their own.
    names = edge.environ.keys() - {"TAILRACE_POOLS"}
    return sorted(n for n in names if environ.get(n, edge.environ[n]) != edge.environ[n])


def url(port: int) -> str:
    """The address of a service on this machine."""
    return f"http://{HOST}:{port}"


def engine_kind(engine: str) -> engines.Kind:
    """The engine's row in the engine table.

    Raises:
        BadOption: `engine` is neither a name nor a URL.
    """
    try:
        return engines.find(engine)
    except engines.UnknownEngine as error:
        raise BadOption(f"--engine {engine}: {engines.CHOICES}") from error


def needs_engine_environment(engine: str) -> bool:
    """Whether the worker runs in the engine's Python environment. Raises BadOption."""
    return engine_kind(engine).environment is engines.Environment.ENGINE


def public_name(source: str) -> str:
    """The name for clients of a model folder or hub name: its last part in lower case."""
    return source.rstrip("/").rsplit("/", 1)[-1].lower()


def ports(options: Options) -> tuple[list[int], list[int]]:
    """The ports of gateways and pushes. The first of each is the option; each further one is the
    next unused number."""
    used = {options.port, options.push_port}

    def following(first: int, count: int) -> list[int]:
        result = [first]
        candidate = first
        while len(result) < count:
            candidate += 1
            if candidate > 65_535:
                raise BadOption(f"no ports left above {first}")
            if candidate not in used:
                used.add(candidate)
                result.append(candidate)
        return result

    return following(options.port, options.gateways), following(options.push_port, options.pushes)


def pools(model: Model) -> str:
    """TAILRACE_POOLS for one pool with this model. Gateways count with the files of a model that is
    a folder."""
    model_names = {
        "models": [model.name],
        "max_model_len": model.max_len,
        "temperature": model.temperature,
        "top_p": model.top_p,
        **({"tokenizer": model.source} if model.source.startswith("/") else {}),
    }
    return json.dumps({POOL: model_names})


def origins(gateway_ports: list[int]) -> str:
    """TAILRACE_ORIGINS: the page by address and by name, because browsers send the typed host."""
    return ",".join(
        f"http://{host}:{port}" for port in gateway_ports for host in (HOST, "localhost")
    )


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of one pool.

    Attributes:
        environ: their settings besides the pools.
    """

    engine: str
    environ: Mapping[str, str]


def workers(options: Options, catalog: Catalog, default: Path) -> list[Workers]:
    """Workers for each pool of TAILRACE_POOLS. `default`: folder of the default model.

    Raises:
        BadOption: --model is given, or a pool does not say what its engine loads.
    """
    if options.model:
        raise BadOption(
            f"--model {options.model}: TAILRACE_POOLS is set; a pool's `source` says what it loads"
        )
    result = []
    for pool in catalog.pools:
        engine = pool.engine or options.engine
        source = pool.source or (str(default) if default.name in pool.models else "")
        if not source and engine_kind(engine).model_from is engines.ModelFrom.FILES:
            raise BadOption(
                f"TAILRACE_POOLS: pool {pool.name}: its engine {engine} needs the member `source`"
            )
        environ = {"TAILRACE_POOL": pool.name, "TAILRACE_ENGINE": engine, **_WORKER_ENVIRONMENT}
        result.append(
            Workers(engine, {**environ, **({"TAILRACE_MODEL": source} if source else {})})
        )
    return result


def services(
    options: Options,
    pools_file: str,
    worker_groups: Sequence[Workers],
    around: Surroundings,
    free_port: Callable[[], int],
) -> list[Service]:
    """Every service, in starting order.

    Args:
        pools_file: TAILRACE_POOLS.
        worker_groups: the workers of each pool.
        free_port: returns a new port at every call.
    """
    gateway_ports, push_ports = ports(options)
    shared = {
        "TAILRACE_KAFKA": around.kafka,
        "TAILRACE_REDIS": around.redis,
        "TAILRACE_HOST": HOST,
        "TAILRACE_POOLS": pools_file,
    }
    edge = {
        **shared,
        "TAILRACE_ISSUERS": str(around.issuers),
        "TAILRACE_ORIGINS": origins(gateway_ports),
        "TAILRACE_ARCHIVE": around.archive,
    }
    own = {
        "TAILRACE_PUSH_URL": ",".join(url(port) for port in push_ports),
        "TAILRACE_PAGE": str(around.page or ""),
        "TAILRACE_DEV_CREDENTIAL": str(around.credential),
        "TAILRACE_SESSION_KEY": str(around.session_key),
        "TAILRACE_RECORDS_VERSION": "2",  # all services have this version
    }
    archive = {name: edge[name] for name in ("TAILRACE_KAFKA", "TAILRACE_HOST", "TAILRACE_ARCHIVE")}

    def service(
        role: Role,
        number: int,
        port: int,
        python: Path,
        environ: Mapping[str, str],
    ) -> Service:
        name, admin_port = f"{role}-{number}", free_port()
        environment = {
            "TAILRACE_NAME": name,
            "TAILRACE_ADMIN_PORT": str(admin_port),
            **({"TAILRACE_PORT": str(port)} if port else {}),
        }
        return Service(name, role, python, port, admin_port, {**environ, **environment})

    return [
        *(
            service("gateway", number, port, around.python, {**edge, **own})
            for number, port in enumerate(gateway_ports, 1)
        ),
        *(
            service("push", number, port, around.python, edge)
            for number, port in enumerate(push_ports, 1)
        ),
        service("archive", 1, 0, around.python, archive),
        *(
            service(
                "worker",
                number,
                0,
                around.engine_python if needs_engine_environment(one.engine) else around.python,
                {**shared, **one.environ, "TAILRACE_TRIALS": str(around.trials)},
            )
            for number, one in enumerate(
                (w for w in worker_groups for _ in range(options.workers)), 1
            )
        ),
    ]


def worker_settings(engine: str, model: Model) -> dict[str, str]:
    """The environment of a worker with this engine and model."""
    return {
        "TAILRACE_POOL": POOL,
        "TAILRACE_ENGINE": engine,
        "TAILRACE_MODEL": model.source,
        "TAILRACE_MODEL_NAME": model.name,
        **_WORKER_ENVIRONMENT,
    }
