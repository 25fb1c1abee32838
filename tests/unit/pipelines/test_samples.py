"""The vector store that examples need: found by its name, or made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from pipelines import command, definition, samples
from tailrace import log

MADE = "vs_" + "a" * 32


class Stores:
    """A gateway with stores, two on a page."""

    def __init__(self, *stores: dict[str, Any], refused: httpx.Response | None = None) -> None:
        self.stores = list(stores)
        self.refused = refused
        self.made: list[dict[str, Any]] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer one"
        if self.refused is not None:
            return self.refused
        if request.method == "POST":
            self.made.append(json.loads(request.content))
            return httpx.Response(200, json={"id": MADE})
        after = request.url.params.get("after")
        names = [each["id"] for each in self.stores]
        first = names.index(after) + 1 if after else 0
        rows = self.stores[first : first + 2]
        more = first + 2 < len(self.stores)
        page = {"data": rows, "has_more": more, "last_id": rows[-1]["id"] if rows else None}
        return httpx.Response(200, json=page)


def store(name: str, title: str, status: str = "completed") -> dict[str, Any]:
    return {"id": name, "name": title, "status": status}


@pytest.fixture
def credential(tmp_path: Path) -> Path:
    file = tmp_path / "credential"
    file.write_text("one\n")
    return file


def asked(stores: Stores, credential: Path) -> str:
    return samples.store("http://gateway", credential, stores.transport)


def test_a_store_is_made_unless_it_is_there(credential: Path) -> None:
    stores = Stores(store("vs_1", "a"), store("vs_2", samples.STORE_NAME, "expired"))
    assert asked(stores, credential) == MADE
    assert stores.made == [{"name": samples.STORE_NAME}]
    there = Stores(*stores.stores, store("vs_3", samples.STORE_NAME))
    assert asked(there, credential) == "vs_3"
    assert there.made == []


@pytest.mark.parametrize(
    "refused",
    [
        httpx.Response(404, json={"error": {"message": "No vector stores here."}}),
        httpx.Response(200, text="<html>"),
        httpx.Response(502, text="<html>"),
    ],
)
def test_a_gateway_without_stores_is_told(credential: Path, refused: httpx.Response) -> None:
    with pytest.raises(samples.NoStore, match=r"No vector stores here|http://gateway|502"):
        asked(Stores(refused=refused), credential)
    with pytest.raises(samples.NoStore, match="No such file"):
        asked(Stores(), credential.with_name("none"))


@pytest.mark.parametrize("name", ["manuals", "questions"])
def test_an_example_names_the_store_that_was_made(
    name: str, credential: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def created(_: str, topics: list[str], **__: object) -> list[str]:
        asked.extend(topics)
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(samples, "store", lambda *_: MADE)
    words = ["example", name, "--kafka", "127.0.0.1:1", "--records", "0"]
    for given in (["--url", "http://x"], ["--credential-file", str(credential)]):
        invocation = CliRunner().invoke(command.app, [*words, *given])
        assert invocation.exit_code == 2
        assert "--url and --credential-file" in invocation.output
    gateway = ["--url", "http://x", "--credential-file", str(credential)]
    monkeypatch.setattr(log, "create_topics", created)
    invocation = CliRunner().invoke(command.app, [*words, *gateway])
    assert invocation.exit_code == 0, invocation.output
    pipeline = definition.parse(Path(f"{name}.yaml").read_bytes())
    assert MADE in yaml.safe_dump(yaml.safe_load(Path(f"{name}.yaml").read_text()))
    assert pipeline.name == name
    assert asked == [pipeline.input.topic, *pipeline.outputs]
