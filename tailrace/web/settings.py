"""Settings of a delivering service: read once from the environment, validated, frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tailrace.log import address
from tailrace.protocol import topics


class Misconfigured(Exception):
    """A variable is missing or wrong; the text names it. The process prints it and exits 2."""


class Pool(msgspec.Struct, frozen=True):
    """One model deployment: the public model ids it serves and its context length in tokens."""

    models: list[str]
    max_model_len: int = 8192
    max_output_tokens: int = 0  # default of max_output_tokens; 0: a quarter of the context
    temperature: float = (
        1.0  # for requests that name none; small models need less than the API's usual 1
    )
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What push needs; the gateway has the same and more."""

    name: str
    kafka: str
    redis: str
    host: str
    port: int
    admin_port: int
    issuers: str
    origins: frozenset[str]
    pools: Mapping[str, Pool]
    drain_s: float


def integer(
    env: Mapping[str, str], name: str, default: int, low: int = 0, high: int = 65535
) -> int:
    """An integer variable within bounds."""
    text = env.get(name, "") or str(default)
    if not text.lstrip("-").isdigit() or not low <= int(text) <= high:
        raise Misconfigured(f"{name} must be an integer from {low} to {high}, not {text!r}")
    return int(text)


def pools_of(env: Mapping[str, str]) -> Mapping[str, Pool]:
    """`TAILRACE_POOLS`."""
    text = env.get("TAILRACE_POOLS", '{"default":{"models":["smollm2-135m-instruct"]}}')
    try:
        pools = msgspec.json.decode(text, type=dict[str, Pool])
        for name in pools:
            topics.requests(name, "interactive")
    except (msgspec.MsgspecError, ValueError) as error:
        raise Misconfigured(f"TAILRACE_POOLS is not a map of pools: {error}") from error
    if not pools or not all(pool.models for pool in pools.values()):
        raise Misconfigured(
            "TAILRACE_POOLS must name at least one pool, each with at least one model"
        )
    return pools


def read(
    env: Mapping[str, str] = os.environ, *, port: int = 8001, name: str = "push-1"
) -> Settings:
    """Settings from the environment.

    Raises:
        Misconfigured
    """
    if not env.get("TAILRACE_ISSUERS"):
        raise Misconfigured("TAILRACE_ISSUERS must be the path of the issuers file")
    kafka = env.get("TAILRACE_KAFKA") or "127.0.0.1:9092"
    try:
        address.parse(kafka)
    except address.InvalidBootstrap as error:
        raise Misconfigured(f"TAILRACE_KAFKA: {error}") from error
    return Settings(
        name=env.get("TAILRACE_NAME") or name,
        kafka=kafka,
        redis=env.get("TAILRACE_REDIS") or "redis://127.0.0.1:6379/0",
        host=env.get("TAILRACE_HOST") or "127.0.0.1",
        port=integer(env, "TAILRACE_PORT", port, 1),
        admin_port=integer(env, "TAILRACE_ADMIN_PORT", 0),
        issuers=env["TAILRACE_ISSUERS"],
        origins=frozenset(
            o.strip().rstrip("/") for o in env.get("TAILRACE_ORIGINS", "").split(",") if o.strip()
        ),
        pools=pools_of(env),
        drain_s=float(integer(env, "TAILRACE_DRAIN_S", 10, 0, 600)),
    )
