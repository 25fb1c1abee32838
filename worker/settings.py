"""Settings of a worker: the environment, read once, checked, frozen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.log import address
from tailrace.protocol import topics

VLLM = "vllm"
SCRIPTED = "scripted"
_DEFAULT_POOLS = '{"default": {"models": ["smollm2-135m-instruct"], "max_model_len": 8192}}'


class Misconfigured(Exception):
    """A variable is missing or makes no sense; the text is one line that names it."""

    def __init__(self, variable: str, why: str) -> None:
        super().__init__(f"{variable}: {why}")


@dataclass(frozen=True, slots=True)
class Settings:
    """See docs/operations.md, Settings. `engine` is vllm, scripted, or the base URL of an
    OpenAI-compatible server."""

    kafka: str
    redis: str
    host: str
    admin_port: int
    name: str
    pool: str
    models: tuple[str, ...]
    max_model_len: int
    engine: str
    engine_key: str = field(repr=False)
    model: str
    model_name: str
    max_num_seqs: int
    session_timeout_ms: int
    drain_s: float
    stall_s: float


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the environment.

    Raises:
        Misconfigured: a variable has no usable value.
    """
    env = os.environ if environment is None else environment
    pool = env.get("TAILRACE_POOL") or "default"
    try:
        topics.requests(pool, topics.CLASSES[0])
    except ValueError as error:
        raise Misconfigured("TAILRACE_POOL", str(error)) from error
    kafka = env.get("TAILRACE_KAFKA") or "127.0.0.1:9092"
    try:
        address.parse(kafka)
    except address.InvalidBootstrap as error:
        raise Misconfigured("TAILRACE_KAFKA", str(error)) from error
    models, max_model_len = _pool(env.get("TAILRACE_POOLS") or _DEFAULT_POOLS, pool)
    engine = env.get("TAILRACE_ENGINE") or VLLM
    if engine not in (VLLM, SCRIPTED) and not re.match(r"https?://[^/]", engine):
        raise Misconfigured(
            "TAILRACE_ENGINE", f"{engine!r} is neither vllm, scripted nor an http(s) URL"
        )
    model_name = env.get("TAILRACE_MODEL_NAME") or models[0]
    model = env.get("TAILRACE_MODEL") or model_name
    if engine == VLLM and not env.get("TAILRACE_MODEL"):
        raise Misconfigured("TAILRACE_MODEL", "the vllm engine needs a model folder or hub name")
    if engine == VLLM and model[0] in "/.~" and not Path(model).is_dir():
        raise Misconfigured("TAILRACE_MODEL", f"there is no folder {model}")
    return Settings(
        kafka=kafka,
        redis=env.get("TAILRACE_REDIS") or "redis://127.0.0.1:6379/0",
        host=env.get("TAILRACE_HOST") or "127.0.0.1",
        admin_port=_number(env, "TAILRACE_ADMIN_PORT", 0, 0, 65_535),
        name=env.get("TAILRACE_NAME") or "worker",
        pool=pool,
        models=tuple(dict.fromkeys((model_name, *models))),
        max_model_len=max_model_len,
        engine=engine,
        engine_key=env.get("TAILRACE_ENGINE_KEY") or "",
        model=model,
        model_name=model_name,
        max_num_seqs=_number(env, "TAILRACE_MAX_NUM_SEQS", 32 if engine == VLLM else 64, 1, 65_536),
        session_timeout_ms=_number(env, "TAILRACE_SESSION_TIMEOUT_MS", 10_000, 300, 3_600_000),
        drain_s=_number(env, "TAILRACE_DRAIN_S", 5, 0, 3_600),
        stall_s=_number(env, "TAILRACE_ENGINE_STALL_S", 60, 1, 3_600),
    )


def _pool(text: str, pool: str) -> tuple[tuple[str, ...], int]:
    try:
        pools = json.loads(text)
        models, length = pools[pool]["models"], pools[pool].get("max_model_len", 8192)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misconfigured(
            "TAILRACE_POOLS", f"no JSON object with a pool {pool!r} that lists its models"
        ) from error
    if (
        not models
        or not all(isinstance(m, str) and m for m in models)
        or not isinstance(length, int)
        or length < 2
    ):
        raise Misconfigured(
            "TAILRACE_POOLS", f"pool {pool!r} needs a list of model names and max_model_len > 1"
        )
    return tuple(models), length


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise Misconfigured(name, f"{text!r} is no whole number from {least} to {most}")
    return int(text)
