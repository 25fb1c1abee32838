"""The environment becomes frozen settings, or one line that says what is wrong."""

from __future__ import annotations

import dataclasses
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace import settings
from tailrace.settings import pools_file, services, table
from tests.support import cases

ROOT = Path(__file__).resolve().parents[4]
WORKER = {"TAILRACE_ENGINE": "scripted"}
READ: dict[str, Callable[[dict[str, str]], Any]] = {
    "gateway": settings.gateway,
    "push": settings.push,
    "worker": settings.worker,
    "archive": settings.archive,
    "tailrace": settings.command,
}


@pytest.fixture
def edge(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "issuers.json"
    file.write_text("{}")
    return {"TAILRACE_ISSUERS": str(file)}


def test_defaults_of_the_gateway(edge: dict[str, str]) -> None:
    config = settings.gateway(edge)
    assert (config.port, config.name, config.kafka) == (8000, "gateway-1", "127.0.0.1:9092")
    assert config.pools.default_model == "smollm2-135m-instruct"
    assert config.pools.pools[0].default_output_tokens == 1024
    assert (config.page, config.dev_credential, config.push_urls) == (None, None, ())
    assert (config.connection_limit_s, config.drain_s, config.accept_s) == (3600, 10, 1)
    assert config.limits == settings.Limits()


def test_defaults_of_push(edge: dict[str, str]) -> None:
    config = settings.push(edge)
    assert (config.port, config.name, config.drain_s) == (8001, "push-1", 10)
    assert config.origins == frozenset()


def test_defaults_of_a_worker() -> None:
    loaded = settings.worker(WORKER)
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
    loaded = settings.worker({"TAILRACE_MODEL": "someone/some-model"})
    assert (loaded.engine, loaded.max_num_seqs) == ("vllm", 32)


def test_the_command_line_tells_a_given_broker_from_none() -> None:
    assert settings.command({}).kafka == ""
    given = settings.command({"TAILRACE_KAFKA": "h:1", "TAILRACE_KAFKA_HEAP_MB": "512"})
    assert (given.kafka, given.kafka_heap_mb) == ("h:1", 512)


def test_everything_given(edge: dict[str, str], tmp_path: Path) -> None:
    config = settings.gateway(
        {
            **edge,
            "TAILRACE_POOLS": '{"a":{"models":["x","y"],"max_model_len":1000},'
            '"b":{"models":["z"],"max_output_tokens":7}}',
            "TAILRACE_PUSH_URL": "http://h:1/, https://k",
            "TAILRACE_ORIGINS": "https://page.example/,http://localhost:8000",
            "TAILRACE_PAGE": str(tmp_path),
            "TAILRACE_LIMITS": '{"responses": 3}',
            "TAILRACE_ACCEPT_MS": "250",
        }
    )
    assert [
        (p.name, p.models, p.max_model_len, p.default_output_tokens) for p in config.pools.pools
    ] == [
        ("a", ("x", "y"), 1000, 250),
        ("b", ("z",), 8192, 7),
    ]
    assert config.push_urls == ("http://h:1", "https://k")
    assert config.origins == {"https://page.example", "http://localhost:8000"}
    assert config.page == tmp_path
    assert (config.limits.responses, config.limits.sockets) == (3, settings.Limits().sockets)
    assert config.accept_s == 0.25


def test_a_variable_that_is_set_but_empty_counts_as_not_set(edge: dict[str, str]) -> None:
    empty = {row.name: "" for row in table.VARIABLES}
    assert settings.gateway({**empty, **edge}) == settings.gateway(edge)
    assert settings.worker({**empty, **WORKER}) == settings.worker(WORKER)


HUGE = "9" * 5000
NUMBERS = ["--5", "-1", "70000000000", "abc", "NaN", "1e3", "1.5", "²", "1_000", " 7", HUGE]
WRONG = [
    *(
        (row.name, value)
        for row in table.VARIABLES
        if row.kind.expected.startswith("a whole number")
        for value in NUMBERS
    ),
    ("TAILRACE_PORT", "0"),
    ("TAILRACE_PORT", "70000"),
    ("TAILRACE_ADMIN_PORT", "70000"),
    ("TAILRACE_MAX_NUM_SEQS", "0"),
    ("TAILRACE_DRAIN_S", "soon"),
    ("TAILRACE_CONNECTION_LIMIT_S", "0"),
    ("TAILRACE_WS_MAX_BYTES", "10"),
    ("TAILRACE_HOST", "a b"),
    ("TAILRACE_HOST", "a..b"),
    ("TAILRACE_KAFKA", "user:secret@host:9092"),
    ("TAILRACE_KAFKA", "kafka://h:1"),
    ("TAILRACE_KAFKA", "h:1?ca_file=/c"),
    ("TAILRACE_KAFKA", "sasl+ssl://u:secret@h:1?password_file=/p&ca_file=/c"),
    ("TAILRACE_KAFKA", "sasl+ssl://u@h:1?password_file=/no/such&ca_file=/no/such"),
    ("TAILRACE_REDIS", "127.0.0.1:6379"),
    ("TAILRACE_REDIS", "http://user:secret@h:1"),
    ("TAILRACE_REDIS", "redis://user:secret@h:port"),
    ("TAILRACE_ISSUERS", "/no/such/file"),
    ("TAILRACE_ISSUERS", "/"),
    ("TAILRACE_PAGE", "/no/such/folder"),
    ("TAILRACE_ORIGINS", "page.example"),
    ("TAILRACE_ORIGINS", "https://page.example/path"),
    ("TAILRACE_ORIGINS", "*"),
    ("TAILRACE_PUSH_URL", "ftp://x"),
    ("TAILRACE_PUSH_URL", "http://x:port"),
    ("TAILRACE_PUSH_URL", "http://[::1"),
    ("TAILRACE_PUSH_URL", "http://x;script-src *"),
    ("TAILRACE_PUSH_URL", "http://x 'unsafe-inline'"),
    ("TAILRACE_PUSH_URL", "http://x\nset-cookie: a"),
    ("TAILRACE_POOLS", "{"),
    ("TAILRACE_POOLS", "[]"),
    ("TAILRACE_POOLS", "{}"),
    ("TAILRACE_POOLS", "[" * 100_000),
    ("TAILRACE_POOLS", "\udcff"),
    ("TAILRACE_POOLS", '{"Bad Pool":{"models":["m"]}}'),
    ("TAILRACE_POOLS", '{"default":{}}'),
    ("TAILRACE_POOLS", '{"default":{"models":[]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":[""]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"max_model_len":"8k"}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"max_model_len":4}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"max_output_tokens":9000}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"temperature":2.1}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"top_p":0}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"]},"b":{"models":["m"]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"fallback":["other"]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"fallback":["default"]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"fallback":["b","b"]},"b":{"models":["n"]}}'),
    ("TAILRACE_POOLS", '{"default":{"models":["m"],"late_after_s":-1}}'),
    ("TAILRACE_LIMITS", "{"),
    ("TAILRACE_LIMITS", '{"respnses": 3}'),
    ("TAILRACE_LIMITS", '{"responses": -1}'),
    ("TAILRACE_LIMITS", '{"responses": 1.5}'),
    ("TAILRACE_LIMITS", '{"requests_rate": NaN}'),
    ("TAILRACE_LIMITS", '{"requests_burst": 0}'),
    ("TAILRACE_POOL", "Bad Pool"),
    ("TAILRACE_POOL", "missing"),
    ("TAILRACE_ENGINE", "ftp://x"),
    ("TAILRACE_ENGINE", "http://"),
    ("TAILRACE_MODEL", "/no/such"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
    ("TAILRACE_ARCHIVE", "mysql://u:secret@h/db"),
    ("TAILRACE_ARCHIVE", "sqlite://"),
    ("TAILRACE_ARCHIVE", "postgresql:///db"),
    ("TAILRACE_ARCHIVE", "postgresql://u:secret@h:99999999/db"),
    ("TAILRACE_VECTORS", "vectors"),
    ("TAILRACE_VECTORS", "file:///vectors"),
    ("TAILRACE_VECTORS", "http://u:secret@/x"),
    ("TAILRACE_VECTORS", "http://u:secret@h:19530/db"),
]


def short(value: str) -> str:
    return ascii(value if len(value) < 40 else f"{value[:6]}*{len(value)}")


@cases.each(("name", "value"), WRONG, ids=[f"{n}={short(v)}" for n, v in WRONG])
def test_a_wrong_value_is_one_line_that_names_its_variable(
    name: str, value: str, edge: dict[str, str]
) -> None:
    own = {"TAILRACE_ENGINE": "vllm"} if name == "TAILRACE_MODEL" else WORKER
    [variable] = [row for row in table.VARIABLES if row.name == name]
    for reader in variable.readers:
        if reader == "tailrace" and name == "TAILRACE_MODEL":
            continue  # the command looks the model up itself
        with pytest.raises(settings.Misconfigured) as caught:
            READ[reader]({**edge, **own, name: value})
        text = str(caught.value)
        assert text.startswith(f"{name}: ")
        assert text.isprintable(), "one line"
        assert len(text) < 400
        assert "secret" not in text


def test_a_wrong_value_of_any_service_is_found_before_anything_starts() -> None:
    settings.check({"TAILRACE_PORT": "8000"})
    with pytest.raises(settings.Misconfigured, match="TAILRACE_LIMITS"):
        settings.check({"TAILRACE_LIMITS": "{"})


def test_the_archives_process_has_to_have_a_database() -> None:
    with pytest.raises(settings.Misconfigured, match=r"^TAILRACE_ARCHIVE: not set"):
        settings.archive({})
    assert settings.archive({"TAILRACE_ARCHIVE": "sqlite:////d/a"}).archive == "sqlite:////d/a"


def test_vector_stores_have_to_have_a_model(edge: dict[str, str]) -> None:
    for value in ("/data/vectors", "http://u:p@h:19530", "https://h"):
        given = {**edge, "TAILRACE_VECTORS": value}
        with pytest.raises(settings.Misconfigured, match=r"^TAILRACE_VECTORS_MODEL: not set"):
            settings.gateway(given)
        made = settings.gateway({**given, "TAILRACE_VECTORS_MODEL": "m"})
        assert (made.vectors, made.vectors_model) == (value, "m")
        assert "u:p" not in repr(made)


def test_the_issuers_have_to_be_named() -> None:
    with pytest.raises(settings.Misconfigured, match=r"^TAILRACE_ISSUERS: not set"):
        settings.push({})


def test_vllm_needs_a_model() -> None:
    with pytest.raises(settings.Misconfigured, match=r"^TAILRACE_MODEL: not set"):
        settings.worker({"TAILRACE_ENGINE": "vllm"})


def test_no_secret_is_shown(edge: dict[str, str]) -> None:
    secrets = {"TAILRACE_ENGINE_KEY": "s3cret", "TAILRACE_REDIS": "redis://u:s3cret@h:1/0"}
    assert "s3cret" not in repr(settings.worker({**WORKER, **secrets}))
    assert "s3cret" not in repr(settings.gateway({**edge, **secrets}))
    assert "s3cret" not in repr(settings.command(secrets))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"KEY": "a", "KEY_FILE": "@"}, "TAILRACE_ENGINE_KEY: set beside TAILRACE_ENGINE_KEY_FILE"),
        ({"TOKEN_URL": "https://a/t"}, "TAILRACE_ENGINE_CLIENT_ID: not set"),
        ({"TOKEN_URL": "https://a/t", "CLIENT_ID": "c"}, "ENGINE_CLIENT_SECRET_FILE: not set"),
        ({"SCOPE": "s"}, "TAILRACE_ENGINE_SCOPE: set without TAILRACE_ENGINE_TOKEN_URL"),
        ({"KEY_FILE": "/nowhere/key"}, "TAILRACE_ENGINE_KEY_FILE: .* is not a file"),
        ({"CONTINUATION": "maybe"}, "TAILRACE_ENGINE_CONTINUATION: .* is not auto, on or off"),
    ],
)
def test_a_credential_of_the_engine_is_whole_and_the_only_one(
    tmp_path: Path, given: dict[str, str], says: str
) -> None:
    (tmp_path / "key").write_text("k")
    values = {name: str(tmp_path / "key") if v == "@" else v for name, v in given.items()}
    environ = {f"TAILRACE_ENGINE_{name}": value for name, value in values.items()}
    with pytest.raises(settings.Misconfigured, match=says):
        settings.worker({**WORKER, **environ})


def test_a_token_endpoint_keeps_the_slash_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("s")
    oauth = {
        "TAILRACE_ENGINE_TOKEN_URL": "https://id.example/token/",
        "TAILRACE_ENGINE_CLIENT_ID": "me",
        "TAILRACE_ENGINE_CLIENT_SECRET_FILE": str(tmp_path / "s"),
    }
    assert settings.worker({**WORKER, **oauth}).engine_token_url == "https://id.example/token/"


@cases.each(
    ("reader", "kind"),
    [
        ("gateway", services.GatewaySettings),
        ("push", services.PushSettings),
        ("worker", services.WorkerSettings),
        ("tailrace", services.CommandSettings),
    ],
)
def test_the_fields_of_a_service_are_the_rows_of_the_table(reader: str, kind: type) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    derived = {"models", "max_model_len", "engine_args", "adapters", "cache"}
    derived |= {"stands_in_for", "related"}
    derived = derived if reader == "worker" else set()
    assert fields - derived == {row.field for row in table.read_by(reader) if row.field}


def test_every_default_has_the_value_that_its_kind_reads() -> None:
    for row in table.VARIABLES:
        for reader in row.readers:
            if default := row.default_for(reader):
                services.parse(row, default)


def test_a_pool_without_a_length_of_answers_gets_a_quarter_of_its_context() -> None:
    (pool,) = pools_file.POOLS.parse('{"p":{"models":["m"],"max_model_len":1000}}').pools
    assert pool.default_output_tokens == 250


WRONGLY_SET = [
    ("gateway", {"TAILRACE_PORT": "--5"}),
    ("gateway", {"TAILRACE_ISSUERS": "/no/such"}),
    ("push", {"TAILRACE_PORT": HUGE}),
]


def test_a_process_with_a_wrong_setting_says_one_line_and_exits_with_2(
    edge: dict[str, str],
) -> None:
    """The worker, which ends itself without Python's own exit."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-m", "worker"],
        env={**kept, "PYTHONPATH": str(ROOT), **edge, **WORKER, "TAILRACE_POOLS": "{"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "TAILRACE_POOLS" in done.stderr


@cases.each(("service", "given"), WRONGLY_SET)
def test_a_service_with_a_wrong_setting_says_one_line_and_exits_with_2(
    service: str,
    given: dict[str, str],
    edge: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        for name, value in {**edge, **given}.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            runpy.run_module(service, run_name="__main__", alter_sys=True)
    said = capsys.readouterr().err
    assert left.value.code == 2, said
    assert len(said.splitlines()) == 1, said
    assert next(iter(given)) in said
