"""Settings of the gateway: what every delivering service has, and more. Read once, frozen."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.limits import DEFAULT_OUTPUT_TOKENS, Limits, Pool
from tailrace.web import settings as push_settings

MAX_WS_BYTES: Final = 128 * 1024
MAX_HTTP_BYTES: Final = 512 * 1024
CONNECTION_LIMIT_S: Final = 3600

Misconfigured = push_settings.Misconfigured


@dataclass(frozen=True, slots=True)
class Settings(push_settings.Settings):
    """
    Attributes:
        deployments: the pools in their order; the first one's first model is the default.
        page: folder of the built page; None without one.
        dev_credential: file with a current development credential; None (always, outside
            development) offers none.
        connection_limit_s: the longest life of a WebSocket.
        accept_s: how long a draining gateway still takes requests, so that balancers notice first.
        cancel_grace_s: how long a response that is not stored outlives the connection that asked
            for it.
    """

    push_urls: tuple[str, ...]
    page: Path | None
    dev_credential: Path | None
    deployments: tuple[Pool, ...]
    limits: Limits
    max_ws_bytes: int
    max_http_bytes: int
    connection_limit_s: float
    accept_s: float
    cancel_grace_s: float

    @property
    def default_model(self) -> str:
        return self.deployments[0].models[0]


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """
    Raises:
        Misconfigured: naming the variable.
    """
    common = push_settings.read(env, port=8000, name="gateway-1")
    return Settings(
        **{f.name: getattr(common, f.name) for f in dataclasses.fields(common)},
        push_urls=_urls(env),
        page=_path(env, "TAILRACE_PAGE"),
        dev_credential=_path(env, "TAILRACE_DEV_CREDENTIAL"),
        deployments=deployments(common.pools),
        limits=_limits(env),
        max_ws_bytes=push_settings.integer(env, "TAILRACE_WS_MAX_BYTES", MAX_WS_BYTES, 1024, 2**24),
        max_http_bytes=push_settings.integer(
            env, "TAILRACE_HTTP_MAX_BYTES", MAX_HTTP_BYTES, 1024, 2**24
        ),
        connection_limit_s=float(
            push_settings.integer(env, "TAILRACE_CONNECTION_LIMIT_S", CONNECTION_LIMIT_S, 1, 86_400)
        ),
        accept_s=push_settings.integer(env, "TAILRACE_ACCEPT_MS", 1000, 0, 600_000) / 1000,
        cancel_grace_s=push_settings.integer(env, "TAILRACE_CANCEL_GRACE_MS", 5000, 0, 600_000)
        / 1000,
    )


def deployments(pools: Mapping[str, push_settings.Pool]) -> tuple[Pool, ...]:
    """The pools, checked: a model names its pool, so no model may be in two.

    Raises:
        Misconfigured
    """
    out = []
    for name, pool in pools.items():
        if not 16 <= pool.max_model_len <= 2**24:
            raise Misconfigured(
                f"TAILRACE_POOLS: max_model_len of {name} must be from 16 to {2**24}"
            )
        answer = pool.max_output_tokens or min(DEFAULT_OUTPUT_TOKENS, pool.max_model_len // 4)
        if not 1 <= answer <= pool.max_model_len:
            raise Misconfigured(
                f"TAILRACE_POOLS: max_output_tokens of {name} must be from 1 to "
                f"{pool.max_model_len}"
            )
        if not (0 <= pool.temperature <= 2 and 0 < pool.top_p <= 1):
            raise Misconfigured(
                f"TAILRACE_POOLS: temperature of {name} must be from 0 to 2, top_p above 0 "
                f"and at most 1"
            )
        out.append(
            Pool(name, tuple(pool.models), pool.max_model_len, answer, pool.temperature, pool.top_p)
        )
    models = [model for pool in out for model in pool.models]
    if len(models) != len(set(models)):
        raise Misconfigured("TAILRACE_POOLS: a model is in two pools")
    return tuple(out)


def _path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _urls(env: Mapping[str, str]) -> tuple[str, ...]:
    found = tuple(
        part.strip().rstrip("/")
        for part in env.get("TAILRACE_PUSH_URL", "").split(",")
        if part.strip()
    )
    for url in found:
        parts = urlsplit(url)
        # It becomes part of a response header (the page's connect-src), so nothing but a plain base
        # URL is let in.
        if (
            parts.scheme not in ("http", "https")
            or not parts.netloc
            or re.search(r"[^\x21-\x7e]|[;,'\"]", url)
        ):
            raise Misconfigured(f"TAILRACE_PUSH_URL is not a base URL: {url!r}")
    return found


def _limits(env: Mapping[str, str]) -> Limits:
    try:
        limits = msgspec.json.decode(env.get("TAILRACE_LIMITS") or "{}", type=Limits)
    except msgspec.MsgspecError as error:
        raise Misconfigured(f"TAILRACE_LIMITS: {error}") from error
    if min(msgspec.structs.astuple(limits)) < 0 or not (
        limits.requests_burst and limits.tokens_burst
    ):
        raise Misconfigured("TAILRACE_LIMITS: limits are numbers from 0, bursts above 0")
    return limits
