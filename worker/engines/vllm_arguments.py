"""The pool's engine arguments: passed to vLLM unchanged, or refused by name.

An argument is refused if the installed vLLM does not know it, if the configuration cannot be built
with it, and if vLLM replaced its value.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from worker.engines import base

# Arguments that the worker sets itself, and where a pool sets them instead.
OWN: Final[Mapping[str, str]] = {
    "model": "the pool's `source` says it",
    "max_model_len": "the pool's `max_model_len` says it",
    "max_num_seqs": "the pool's `max_num_seqs` says it",
    "reasoning_parser": "TAILRACE_REASONING_PARSER says it",
    "structured_outputs_config": "answers that continue need Tailrace's",
    "limit_mm_per_prompt": "gateways check Tailrace's",
    "mm_processor_cache_gb": "it would keep images of prompts that are never asked for",
    "skip_tokenizer_init": "Tailrace needs the tokenizer",
}
_MAX_TEXT: Final = 180  # characters of vLLM's message


def check_names(engine_args: Iterable[str], known_names: Iterable[str], version: str) -> None:
    """Check that vLLM knows the arguments, and that they are not the worker's own.

    Raises:
        base.ArgumentRefused
    """
    names = [name for name in known_names if not name.startswith("_")]
    for name in engine_args:
        if name in OWN:
            raise base.ArgumentRefused(f"engine_args.{name} cannot be given: {OWN[name]}")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            meant = f", perhaps {near[0]!r}" if near else ""
            raise base.ArgumentRefused(f"vLLM {version} has no engine_args.{name}{meant}")


def configure(
    build: Callable[[Mapping[str, Any]], Any], engine_args: Mapping[str, Any], version: str
) -> Any:
    """vLLM's configuration with these arguments, made by `build`.

    Raises:
        base.ArgumentRefused: vLLM refused or changed one of the arguments, which is named.
        Exception: from `build`, where no argument is the cause.
    """
    try:
        config = build(engine_args)
    except Exception as error:
        names = _culprits(build, engine_args)
        if not names:
            raise
        raise base.ArgumentRefused(
            f"vLLM {version} cannot do {_list(names)} here: {_describe(error)}"
        ) from error
    for name, value in engine_args.items():
        values = _values(config, name, type(value))
        if values and value != "auto" and value not in values:
            raise base.ArgumentRefused(
                f"vLLM {version} cannot do engine_args.{name} = {value!r} here: it takes "
                f"{values[0]!r}"
            )
    return config


def _culprits(
    build: Callable[[Mapping[str, Any]], Any], engine_args: Mapping[str, Any]
) -> list[str]:
    """The arguments without which it can be built: each alone, or else all together."""
    alone = [
        name
        for name in engine_args
        if _builds(build, {n: engine_args[n] for n in engine_args if n != name})
    ]
    if alone or not engine_args:
        return alone
    return list(engine_args) if _builds(build, {}) else []


def _builds(build: Callable[[Mapping[str, Any]], Any], engine_args: Mapping[str, Any]) -> bool:
    try:
        build(engine_args)
    except Exception:  # vLLM's checks raise errors of many kinds
        return False
    return True


def _values(config: Any, name: str, kind: type) -> list[Any]:
    """The values under an argument's name in the parts of the configuration, if it is scalar."""
    if kind not in (bool, int, float, str):
        return []
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    values = [getattr(part, name) for part in parts if name in getattr(part, "__dict__", ())]
    return [value for value in values if type(value) is kind]


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"engine_args.{name}" for name in names)


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MAX_TEXT]}"
