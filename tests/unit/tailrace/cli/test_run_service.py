"""What a service that joins a deployment is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli import run_service
from tailrace.local import paths, plan

POOLS = """
pools:
  large: {models: [big], engine: scripted}
  small: {models: [little], engine: "http://127.0.0.1:1/v1", source: little-one}
"""


class Replaced(Exception):
    """What `execve` was called with."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TAILRACE_POOL", "TAILRACE_ENGINE", "TAILRACE_MODEL", "TAILRACE_MODEL_NAME"):
        monkeypatch.delenv(name, raising=False)
    found = tmp_path / "pools.yaml"
    found.write_text(POOLS)
    monkeypatch.setenv("TAILRACE_POOLS", str(found))

    def execve(program: str, arguments: list[str], environ: dict[str, str]) -> None:
        raise Replaced(environ)

    monkeypatch.setattr("tailrace.cli.run_service.os.execve", execve)
    return found


def told(folder: Path, **given: str) -> dict[str, str]:
    with pytest.raises(Replaced) as found:
        run_service.run("worker", paths.Data(folder / "data"), given)
    environ: dict[str, str] = found.value.args[0]
    names = ("TAILRACE_POOL", "TAILRACE_ENGINE", "TAILRACE_MODEL", "TAILRACE_MODEL_NAME")
    return {name: environ[name] for name in names if name in environ}


def test_a_worker_is_of_the_first_pool_of_a_file(file: Path, tmp_path: Path) -> None:
    assert told(tmp_path) == {"TAILRACE_POOL": "large", "TAILRACE_ENGINE": "scripted"}


def test_a_worker_is_of_the_pool_that_the_environment_names(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_POOL", "small")
    assert told(tmp_path) == {
        "TAILRACE_POOL": "small",
        "TAILRACE_ENGINE": "http://127.0.0.1:1/v1",
        "TAILRACE_MODEL": "little-one",
    }


def test_an_option_counts_more_than_the_pool(file: Path, tmp_path: Path) -> None:
    chosen = told(tmp_path, TAILRACE_ENGINE="http://127.0.0.1:2/v1")
    assert chosen["TAILRACE_ENGINE"] == "http://127.0.0.1:2/v1"


def test_a_model_beside_a_file_of_pools_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(plan.BadOption, match="--model other: TAILRACE_POOLS is set"):
        run_service.run("worker", paths.Data(tmp_path / "data"), {"TAILRACE_MODEL": "other"})
