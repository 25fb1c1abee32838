"""Which engine arguments are handed on, and which are refused by name, without vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import cases
from worker.engines import base, vllm_arguments

KNOWN = ("model", "max_model_len", "tensor_parallel_size", "_private")


class Part:
    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)


@dataclass
class Config:
    cache: Part
    scheduler: Part


def build(given: Mapping[str, Any]) -> Config:
    if given.get("a") == "broken" or {"b", "c"} <= given.keys():
        raise ValueError("a or b and c:\n  no")
    if given.get("model") == "missing":
        raise OSError("no model")
    dbo = False if "dbo" in given else None
    return Config(Part(size=given.get("size", 1), mode="hf"), Part(dbo=dbo))


def test_arguments_that_vllm_knows_pass() -> None:
    vllm_arguments.check_names(["tensor_parallel_size"], KNOWN, "1")


@cases.each(
    ("name", "said"),
    [
        ("tensor_paralel_size", "vLLM 1 has no engine_args.tensor_paralel_size, perhaps 'tensor_"),
        ("zzz", "vLLM 1 has no engine_args.zzz$"),
        ("_private", "vLLM 1 has no engine_args._private"),
        ("max_model_len", "engine_args.max_model_len cannot be given: the pool's `max_model_len`"),
    ],
)
def test_a_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(base.ArgumentRefused, match=said):
        vllm_arguments.check_names([name], KNOWN, "1")


@cases.each(
    ("given", "said"),
    [
        ({"x": 1, "a": "broken"}, "cannot do engine_args.a here: ValueError: a or b and c: no"),
        ({"x": 1, "b": 1, "c": 1}, "cannot do engine_args.b, engine_args.c here"),
        ({"a": "broken", "b": 1, "c": 1}, "cannot do engine_args.a, engine_args.b, engine_args.c"),
        ({"dbo": True}, "cannot do engine_args.dbo = True here: it takes False"),
    ],
)
def test_what_cannot_be_done_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(base.ArgumentRefused, match=said):
        vllm_arguments.configure(build, given, "1")


@cases.each("given", [{}, {"size": 4}, {"x": [1], "size": 2, "mode": "auto"}])
def test_what_can_be_done_is_configured(given: dict[str, Any]) -> None:
    assert vllm_arguments.configure(build, given, "1").cache.size == given.get("size", 1)


def test_a_failure_that_no_argument_causes_is_no_refusal() -> None:
    def without_model(given: Mapping[str, Any]) -> Any:
        return build({**given, "model": "missing"})

    with pytest.raises(OSError, match="no model"):
        vllm_arguments.configure(without_model, {"x": 1}, "1")
