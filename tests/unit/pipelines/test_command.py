"""The command line: which files it takes, and what it says of the others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines import command, progress, samples
from pipelines.examples import data

GOOD = samples.file("reviews").decode()


def checked(*files: Path) -> tuple[int, str]:
    invocation = CliRunner().invoke(command.app, ["check", *map(str, files)])
    return invocation.exit_code, invocation.output


@pytest.mark.parametrize("name", list(data.GENERATORS))
def test_the_examples_are_pipelines(name: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(samples.file(name))
    code, said = checked(file)
    assert code == 0
    assert f"p.yaml: {name} (revision 1-" in said


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("name: reviews", "name: Reviews", "`$.name`"),
        ("where: record.text is defined and record.text", "where: record.(", "where"),
        ("{{ record.product }}", "{{ record.product }", "prompt.user, line 1"),
        ("{{ record.product }}", "{% include 'x' %}", "no include here"),
        ("type: object", "type: thing", "answer"),
        ("alert: {topic: shop.reviews.alerts", "alert: {topic: shop.reviews", "named twice"),
        ("concurrency: 16", "concurrency: [", "line 2"),
    ],
)
def test_check_says_what_is_wrong(old: str, new: str, why: str, tmp_path: Path) -> None:
    assert old in GOOD
    file = tmp_path / "p.yaml"
    file.write_text(GOOD.replace(old, new))
    code, said = checked(file)
    assert code == 2
    assert "p.yaml" in said
    assert why in said


def test_check_stops_at_the_first_bad_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text("name: x")
    code, said = checked(good, bad)
    assert code == 2
    assert "good.yaml: reviews" in said
    assert "`input`" in said
    assert checked(tmp_path / "none.yaml") == (
        2,
        f"pipelines: {tmp_path}/none.yaml: No such file or directory\n",
    )


def test_an_example_that_is_none_is_refused_with_those_there_are() -> None:
    invocation = CliRunner().invoke(command.app, ["example", "poems", "--kafka", "127.0.0.1:1"])
    assert invocation.exit_code == 2
    assert "reviews, anomalies" in invocation.output


@pytest.mark.parametrize("since", ["yesterday", "2026-11-25T12:00:00"])
def test_a_replay_needs_a_time_with_a_zone(
    since: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD)

    async def look(*_: object) -> progress.Progress:
        return progress.Progress({})

    monkeypatch.setattr("pipelines.progress.read", look)
    invocation = CliRunner().invoke(
        command.app, ["replay", str(file), "--kafka", "127.0.0.1:1", "--from", since]
    )
    assert invocation.exit_code == 2
    assert "--from" in invocation.output


def served(*words: str) -> tuple[int, str]:
    to = ["--kafka", "127.0.0.1:1", "--url", "http://127.0.0.1:1"]
    invocation = CliRunner().invoke(command.app, ["serve", *words, *to])
    return invocation.exit_code, invocation.output


def test_the_view_says_what_keeps_it_from_starting(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(GOOD)
    assert served(str(good), str(good)) == (2, "pipelines: two of the files have the same name\n")
    code, response = served(str(good), "--page", str(tmp_path))
    assert code == 2
    assert "npm run build" in response
    for store, why in (
        ("https://ada:secret@h/d", "the password is in the file"),
        ("clickhouse://h/d", "expected http or https://"),
        ("https://h/d?ca_file=/none/ca", "No such file"),
    ):
        code, response = served(str(good), "--store", store)
        assert code == 2
        assert response.startswith("pipelines: --store: ")
        assert why in response
        assert "secret" not in response
    (tmp_path / "admin.html").write_text("page")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, response = served(str(good), "--page", str(tmp_path), "--port", port)
    assert code == 1
    assert "in use" in response


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["input", "--to", "http://127.0.0.1:1/d"], "a sink writes no input"),
        (["alerts", "--to", "http://127.0.0.1:1/d"], "this pipeline has no alerts"),
        (["--to", "http://ada:secret@127.0.0.1:1/d"], "--to: the password is in the file"),
        (["--to", "opensearch+http://127.0.0.1:1"], "--to: expected the name"),
        (["--to", "https://127.0.0.1:1/d?ca_file=/none/ca"], "--to: "),
    ],
)
def test_a_sink_says_what_is_wrong_with_its_arguments(
    options: list[str], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(samples.file("translation"))
    given = ["sink", str(file), *options, "--kafka", "127.0.0.1:1"]
    invocation = CliRunner().invoke(command.app, given)
    assert invocation.exit_code == 2
    assert why in invocation.output
    assert "secret" not in invocation.output
