"""What is started, where and with which settings, from the options alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.local import plan
from tailrace.settings import catalog
from tests.support import cases

MODEL = plan.Model("/models/m", "m", 4096)
AROUND = plan.Surroundings(
    kafka="k:9092",
    redis="redis://r:6379/0",
    issuers=Path("/d/issuers.json"),
    credential=Path("/d/dev-credential"),
    session_key=Path("/d/session-key"),
    archive="sqlite:////d/archive.sqlite3",
    trials=Path("/cache/engine-fields"),
    page=Path("/page"),
    python=Path("/venv/python"),
    engine_python=Path("/engine/python"),
)


def services(**options: object) -> dict[str, plan.Service]:
    numbers = itertools.count(40_000)
    chosen = plan.Options(**options)  # type: ignore[arg-type]
    workers = [plan.Workers(chosen.engine, plan.worker_settings(chosen.engine, MODEL))]
    found = plan.services(chosen, plan.pools(MODEL), workers, AROUND, lambda: next(numbers))
    return {service.name: service for service in found}


def test_by_default_there_is_one_of_each_on_the_documented_ports() -> None:
    found = services()
    assert [(name, one.address) for name, one in found.items()] == [
        ("gateway-1", "http://127.0.0.1:8000"),
        ("push-1", "http://127.0.0.1:8001"),
        ("archive-1", ""),
        ("worker-1", ""),
    ]


def test_further_instances_take_the_next_ports_that_are_not_given_out() -> None:
    assert plan.ports(plan.Options(gateways=2)) == ([8000, 8002], [8001])
    assert plan.ports(plan.Options(gateways=3, pushes=2)) == ([8000, 8002, 8003], [8001, 8004])
    assert plan.ports(plan.Options(gateways=2, port=9000, push_port=8001)) == ([9000, 9001], [8001])


def test_no_ports_above_the_last_one() -> None:
    with pytest.raises(plan.BadOption, match="no ports left above 65535"):
        plan.ports(plan.Options(gateways=2, port=65_535))


def test_every_instance_has_a_name_and_an_admin_port_of_its_own() -> None:
    found = services(workers=3, gateways=2, pushes=2).values()
    assert (
        len({one.admin_port for one in found})
        == len({one.environ["TAILRACE_NAME"] for one in found})
        == 8
    )
    assert all(one.environ["TAILRACE_ADMIN_PORT"] == str(one.admin_port) for one in found)


def test_the_gateway_tells_the_page_all_push_services_and_allows_its_own_origins() -> None:
    environ = services(gateways=2, pushes=2)["gateway-1"].environ
    assert environ["TAILRACE_PUSH_URL"] == "http://127.0.0.1:8001,http://127.0.0.1:8003"
    assert set(environ["TAILRACE_ORIGINS"].split(",")) == {
        "http://127.0.0.1:8000",
        "http://localhost:8000",
        "http://127.0.0.1:8002",
        "http://localhost:8002",
    }


def test_only_gateway_and_push_get_issuers_and_only_the_gateway_the_development_credential() -> (
    None
):
    found = services()
    assert "TAILRACE_ISSUERS" not in found["worker-1"].environ
    assert "TAILRACE_DEV_CREDENTIAL" not in found["push-1"].environ
    assert found["gateway-1"].environ["TAILRACE_DEV_CREDENTIAL"] == "/d/dev-credential"
    assert not any(
        "key" in value.lower()
        for one in found.values()
        for name, value in one.environ.items()
        if name not in ("TAILRACE_ISSUERS", "TAILRACE_SESSION_KEY")
    )
    assert found["gateway-1"].environ["TAILRACE_SESSION_KEY"] == "/d/session-key"
    assert not any("TAILRACE_SESSION_KEY" in found[name].environ for name in ("push-1", "worker-1"))


def test_the_archive_is_a_file_that_gateway_and_push_read_and_its_process_writes() -> None:
    found = services()
    assert found["archive-1"].command == ["/venv/python", "-m", "tailrace.archiver"]
    for name in ("gateway-1", "push-1", "archive-1"):
        assert found[name].environ["TAILRACE_ARCHIVE"] == "sqlite:////d/archive.sqlite3"
    assert "TAILRACE_ARCHIVE" not in found["worker-1"].environ


def test_the_archive_of_the_environment_is_used() -> None:
    file, database = Path("/d/archive.sqlite3"), "postgresql://u:p@db/chats"
    assert plan.archive_url(file, {}) == plan.archive_url(file, {"TAILRACE_ARCHIVE": ""})
    assert plan.archive_url(file, {}) == "sqlite:////d/archive.sqlite3"
    assert plan.archive_url(file, {"TAILRACE_ARCHIVE": database}) == database


def test_settings_of_the_environment_that_are_not_used_are_named() -> None:
    found = [*services().values()]
    own = {"TAILRACE_KAFKA": "k:9092", "TAILRACE_POOLS": "pools.json", "HOME": "/h"}
    assert plan.replaced(found, own) == []
    others = {"TAILRACE_REDIS": "redis://other", "TAILRACE_KAFKA": "broker:9092"}
    assert plan.replaced(found, own | others) == ["TAILRACE_KAFKA", "TAILRACE_REDIS"]


@cases.each(
    ("engine", "python"),
    [
        ("vllm", "/engine/python"),
        ("scripted", "/venv/python"),
        ("http://127.0.0.1:11434/v1", "/venv/python"),
    ],
)
def test_only_vllm_runs_in_the_engine_environment(engine: str, python: str) -> None:
    worker = services(engine=engine)["worker-1"]
    assert worker.command == [python, "-m", "worker"]
    assert worker.environ["TAILRACE_ENGINE"] == engine


def test_pools_name_the_model_clients_ask_for() -> None:
    assert json.loads(services()["push-1"].environ["TAILRACE_POOLS"]) == {
        "default": {
            "models": ["m"],
            "max_model_len": 4096,
            "temperature": 1.0,
            "top_p": 1.0,
            "tokenizer": "/models/m",
        }
    }


def test_gateways_count_only_with_a_model_that_is_a_folder() -> None:
    of_server = plan.Model("llama3", "llama3")
    assert "tokenizer" not in json.loads(plan.pools(of_server))["default"]


@cases.each(
    ("options", "text"),
    [
        ({"engine": "gpt"}, "--engine gpt"),
        ({"engine": "ftp://x/v1"}, "--engine ftp"),
        ({"workers": -1}, "--workers -1"),
        ({"gateways": 0}, "--gateways 0"),
        ({"pushes": 33}, "--pushes 33"),
        ({"port": 0}, "--port 0"),
        ({"port": 8001}, "both 8001"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(plan.BadOption, match=text):
        plan.Options(**options).check()  # type: ignore[arg-type]


@cases.each(
    ("source", "name"),
    [
        ("/models/SmolLM2-135M-Instruct/", "smollm2-135m-instruct"),
        ("HuggingFaceTB/SmolLM2-1.7B", "smollm2-1.7b"),
        ("plain", "plain"),
    ],
)
def test_clients_call_a_model_by_the_last_part_of_its_place(source: str, name: str) -> None:
    assert plan.public_name(source) == name


CATALOG = catalog.from_pools(
    {
        "small": {"models": ["s"], "engine": "vllm", "source": "/models/s"},
        "other": {"models": ["o"]},
        "own": {"models": ["toy"], "engine": "vllm"},
    }
)


def test_each_pool_of_the_variable_has_its_workers() -> None:
    chosen = plan.Options(engine="scripted", workers=2)
    workers = plan.workers(chosen, CATALOG, Path("/cache/models/toy"))
    numbers = itertools.count(40_000)
    found = plan.services(chosen, "/pools.yaml", workers, AROUND, lambda: next(numbers))
    told = [
        (one.name, str(one.python), one.environ["TAILRACE_POOL"], one.environ["TAILRACE_ENGINE"])
        for one in found
        if one.role == "worker"
    ]
    assert told[::2] == [
        ("worker-1", "/engine/python", "small", "vllm"),
        ("worker-3", "/venv/python", "other", "scripted"),
        ("worker-5", "/engine/python", "own", "vllm"),
    ]
    assert len(told) == 6
    assert {one.environ["TAILRACE_POOLS"] for one in found if one.role != "archive"} == {
        "/pools.yaml"
    }
    assert [one.environ.get("TAILRACE_MODEL") for one in workers] == [
        "/models/s",
        None,
        "/cache/models/toy",
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [({"model": "x"}, "--model x: TAILRACE_POOLS is set"), ({}, "pool other: its engine vllm")],
)
def test_pools_that_do_not_say_what_their_engine_loads(options: dict[str, Any], text: str) -> None:
    with pytest.raises(plan.BadOption, match=text):
        plan.workers(plan.Options(**options), CATALOG, Path("/cache/models/toy"))
