"""The settings of each service, as a frozen dataclass that is read once, at start.

The fields are those of `table.py`. A variable that is set but empty counts as not set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from tailrace import engines
from tailrace.protocol import record_tags
from tailrace.settings import kinds, shapes, table
from tailrace.settings.catalog import Catalog

Misconfigured = kinds.Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """What every service has."""

    name: str
    kafka: str
    kafka_public_api: int
    record_keys: record_tags.Keyring | None
    host: str
    admin_port: int
    otlp_endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings(ProcessSettings):
    """Settings of the archive's process."""

    archive: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(ProcessSettings):
    """What a service of the pools has besides."""

    redis: str = field(repr=False)
    pools: Catalog
    drain_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings(ServiceSettings):
    """What a service that clients reach has besides."""

    port: int
    archive: str = field(repr=False)
    issuers: Path
    origins: frozenset[str]
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    limits: shapes.Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings(EdgeSettings):
    """Settings of push."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(EdgeSettings):
    """Settings of the gateway; `table.py` says what each means."""

    push_urls: tuple[str, ...]
    page: Path | None
    page_titles: int
    dev_credential: Path | None
    session_keys: tuple[bytes, ...] | None = field(repr=False)
    redis_cache: str = field(repr=False)
    records_version: int
    max_ws_bytes: int
    max_http_bytes: int
    connection_limit_s: float
    accept_s: float
    cancel_grace_s: float
    prefix_affinity: int
    vectors: str = field(repr=False)
    vectors_model: str

    @property
    def searches(self) -> bool:
        """Whether the tool `file_search` is run. Readers before version 2 of the records would show
        what an echo has of a search."""
        return bool(self.vectors) and self.records_version > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ServiceSettings):
    """Settings of a worker; `table.py` says what each means.

    Attributes:
        models: the pool's models, the one this worker loads first, and its adapters.
        stands_in_for: models of pools whose `fallback` names this worker's pool.
        related: those pools, and the ones that its pool's `fallback` names: their workers may have
            the same requests.
        max_model_len: context of the pool, in tokens.
        engine_args: arguments of vLLM's engine, as the pool has them.
        adapters: LoRA adapters of the pool: name -> folder or hub name.
        cache: whether the engine keeps prefixes of prompts.
    """

    redis_cache: str = field(repr=False)
    pool: str
    models: tuple[str, ...]
    stands_in_for: tuple[str, ...]
    related: tuple[str, ...]
    max_model_len: int
    engine_args: Mapping[str, Any]
    trials: Path | None
    adapters: Mapping[str, str]
    cache: shapes.CachePolicy
    engine: str
    engine_key: str = field(repr=False)
    engine_key_file: Path | None
    engine_token_url: str
    engine_client_id: str
    engine_client_secret_file: Path | None
    engine_scope: str
    engine_audience: str
    engine_continuation: str
    model: str
    model_name: str
    max_num_seqs: int
    principal_share: float
    principal_limit: float
    batch_share: float
    pause_s: float
    weights: Mapping[str, float]
    steal_after_s: float
    script_revision: str
    script_first_token_s: float
    script_fail_every: int
    script_prefill_s: float
    script_steps: tuple[tuple[int, float], ...]
    script_cache_tokens: int
    script_refuses: frozenset[str]
    script_ends: frozenset[str]
    session_timeout_ms: int
    stall_s: float
    vllm_public_api: int
    tool_parser: str
    reasoning_parser: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What the command `tailrace` reads. Empty texts and None are variables that are not set."""

    kafka: str
    redis: str = field(repr=False)
    engine: str
    model: str
    data: Path | None
    kafka_heap_mb: int


def push(environ: Mapping[str, str] = os.environ) -> PushSettings:
    """Settings of push.

    Raises:
        Misconfigured
    """
    return PushSettings(**_values(table.PUSH, environ))


def gateway(environ: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Settings of the gateway.

    Raises:
        Misconfigured
    """
    values = _values(table.GATEWAY, environ)
    if values["vectors"] and not values["vectors_model"]:
        raise Misconfigured(
            "TAILRACE_VECTORS_MODEL: not set, but with TAILRACE_VECTORS it has to be"
        )
    return GatewaySettings(**values)


def archive(environ: Mapping[str, str] = os.environ) -> ArchiveSettings:
    """Settings of the archive's process.

    Raises:
        Misconfigured
    """
    values = _values(table.ARCHIVE, environ)
    if not values["archive"]:
        raise Misconfigured("TAILRACE_ARCHIVE: not set, but it has to be the archive's database")
    return ArchiveSettings(**values)


def worker(environ: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Settings of a worker.

    Raises:
        Misconfigured
    """
    values = _values(table.WORKER, environ)
    catalog: Catalog = values["pools"]
    own = catalog.pool(values["pool"])
    if own is None:
        raise Misconfigured(
            f"TAILRACE_POOL: {kinds.shorten(values['pool'])} is not one of the pools in "
            f"TAILRACE_POOLS ({', '.join(catalog.names)})"
        )
    if own.engine and not environ.get("TAILRACE_ENGINE"):
        values["engine"] = kinds.ENGINE.parse(own.engine)
    engine, folder = values["engine"], values["model"] or own.source
    kind = engines.find(engine)
    if kind.model_from is engines.ModelFrom.FILES:
        if not folder:
            raise Misconfigured(
                f"TAILRACE_MODEL: not set, but the {engine} engine needs a model folder or hub name"
            )
        if folder[0] in "/.~" and not Path(folder).is_dir():
            raise Misconfigured(f"TAILRACE_MODEL: there is no folder {kinds.shorten(folder)}")
    _check_credential(values)
    name = values["model_name"] = values["model_name"] or own.models[0]
    values["model"] = folder or name
    values["models"] = tuple(dict.fromkeys((name, *own.answers)))
    pools = [pool for pool in catalog.pools if own.name in pool.fallback]
    values["stands_in_for"] = catalog.stands_in_for(own.name)
    values["related"] = tuple(dict.fromkeys((*(pool.name for pool in pools), *own.fallback)))
    values["max_model_len"] = own.max_model_len
    values["max_num_seqs"] = values["max_num_seqs"] or own.max_num_seqs or kind.max_num_seqs
    values["engine_args"], values["cache"] = own.engine_args, own.cache
    values["adapters"] = own.adapters
    for member in ("engine_args", "adapters"):
        if values[member] and kind is not engines.VLLM:
            raise Misconfigured(
                f"TAILRACE_POOLS: pool {own.name}: {member} are for the engine "
                f"{engines.VLLM.name}, and this worker's is {kinds.shorten(engine)}"
            )
    return WorkerSettings(**values)


def _check_credential(values: Mapping[str, Any]) -> None:
    """
    Raises:
        Misconfigured: the engine would get two credentials, or a part of one.
    """
    ways = ("engine_key", "engine_key_file", "engine_token_url")
    names = [f"TAILRACE_{kind.upper()}" for kind in ways if values[kind]]
    if len(names) > 1:
        raise Misconfigured(f"{names[0]}: set beside {names[1]}, but only one of them can hold")
    parts = ("engine_client_id", "engine_client_secret_file")
    for part in parts if values["engine_token_url"] else ():
        if not values[part]:
            raise Misconfigured(
                f"TAILRACE_{part.upper()}: not set, but TAILRACE_ENGINE_TOKEN_URL needs it"
            )
    for part in (*parts, "engine_scope", "engine_audience"):
        if values[part] and not values["engine_token_url"]:
            raise Misconfigured(f"TAILRACE_{part.upper()}: set without TAILRACE_ENGINE_TOKEN_URL")


def command(environ: Mapping[str, str] = os.environ) -> CommandSettings:
    """Settings of the command `tailrace`.

    Raises:
        Misconfigured
    """
    return CommandSettings(**_values(table.COMMAND, environ))


def pools(environ: Mapping[str, str] = os.environ) -> Catalog | None:
    """The pools that are set, for a command that reads no other setting; None: none are.

    Raises:
        Misconfigured
    """
    catalog: Catalog | None = _alone("pools", environ)
    return catalog


def record_keys(environ: Mapping[str, str] = os.environ) -> record_tags.Keyring | None:
    """The record keys that are set, for a command that reads no other setting.

    Raises:
        Misconfigured
    """
    keyring: record_tags.Keyring | None = _alone("record_keys", environ)
    return keyring


def _alone(field: str, environ: Mapping[str, str]) -> Any:
    row = next(row for row in table.VARIABLES if row.field == field)
    text = environ.get(row.name)
    return parse(row, text) if text else None


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Check every variable that is set, whichever service reads it.

    The command that starts services calls it, so that a wrong value is said once, and before
    anything has started.

    Raises:
        Misconfigured: for the first one that is wrong.
    """
    for row in table.VARIABLES:
        if environ.get(row.name):
            parse(row, environ[row.name])


def parse(row: table.Variable, text: str) -> Any:
    """The value of a variable.

    Raises:
        Misconfigured
    """
    try:
        return row.kind.parse(text)
    except ValueError as error:
        value = "the value" if row.secret else kinds.shorten(text)
        why = " ".join(str(error).split())
        raise Misconfigured(
            f"{row.name}: {value} is not {row.kind.expected}{f' ({why})' if why else ''}"
        ) from error


def _values(reader: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of one reader's variables by field."""
    values = {}
    for row in table.read_by(reader):
        if not row.field:
            continue
        text = environ.get(row.name) or row.default_for(reader)
        if text is None:
            raise Misconfigured(f"{row.name}: not set, but it has to be {row.kind.expected}")
        values[row.field] = parse(row, text) if text else row.kind.absent
    return values
