"""The worker's environment."""

from __future__ import annotations

import pytest

from worker import settings

GOOD = {"TAILRACE_ENGINE": "scripted"}


def test_defaults_are_those_of_the_process_contract() -> None:
    loaded = settings.load(GOOD)
    assert (loaded.kafka, loaded.redis) == ("127.0.0.1:9092", "redis://127.0.0.1:6379/0")
    assert (loaded.pool, loaded.models, loaded.max_model_len) == (
        "default",
        ("smollm2-135m-instruct",),
        8192,
    )
    assert (loaded.max_num_seqs, loaded.session_timeout_ms, loaded.drain_s, loaded.admin_port) == (
        64,
        10_000,
        5,
        0,
    )


def test_the_vllm_engine_is_the_default_and_takes_fewer_at_once() -> None:
    loaded = settings.load({"TAILRACE_MODEL": "someone/some-model"})
    assert (loaded.engine, loaded.max_num_seqs) == ("vllm", 32)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TAILRACE_ENGINE", "ftp://x"),
        ("TAILRACE_ENGINE", "http://"),
        ("TAILRACE_ENGINE", "vllm"),
        ("TAILRACE_POOL", "Bad Pool"),
        ("TAILRACE_POOL", "missing"),
        ("TAILRACE_POOLS", "{"),
        ("TAILRACE_POOLS", "[]"),
        ("TAILRACE_POOLS", '{"default": {"models": []}}'),
        ("TAILRACE_POOLS", '{"default": {"models": ["m"], "max_model_len": "8k"}}'),
        ("TAILRACE_KAFKA", "user:secret@host:9092"),
        ("TAILRACE_ADMIN_PORT", "70000"),
        ("TAILRACE_MAX_NUM_SEQS", "0"),
        ("TAILRACE_MAX_NUM_SEQS", "-3"),
        ("TAILRACE_DRAIN_S", "soon"),
    ],
)
def test_a_misconfiguration_names_its_variable_in_one_line(variable: str, value: str) -> None:
    with pytest.raises(settings.Misconfigured) as caught:
        settings.load(GOOD | {variable: value})
    text = str(caught.value)
    named = {"vllm": "TAILRACE_MODEL", "missing": "TAILRACE_POOLS"}.get(value, variable)
    assert text.startswith(f"{named}: ")
    assert "\n" not in text
    assert "secret" not in text


def test_a_model_folder_that_is_not_there_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(
        settings.Misconfigured, match=r"^TAILRACE_MODEL: there is no folder /no/such"
    ):
        settings.load({"TAILRACE_MODEL": "/no/such"})


def test_the_engines_key_is_not_shown() -> None:
    assert "s3cret" not in repr(settings.load(GOOD | {"TAILRACE_ENGINE_KEY": "s3cret"}))
