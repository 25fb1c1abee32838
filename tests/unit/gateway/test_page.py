"""The page is a table of files, and nothing else can be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import page


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>x</title>")
    (folder / "assets" / "a-1.js").write_text("1")
    (folder / "icon.svg").write_text("<svg/>")
    (tmp_path / "secret").write_text("s")
    (folder / "leak").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    return folder


def test_the_table(built: Path) -> None:
    files = page.load(built)
    assert set(files) == {"/", "/index.html", "/assets/a-1.js", "/icon.svg"}
    assert files["/"].content_type == "text/html; charset=utf-8"
    assert files["/icon.svg"].content_type == "image/svg+xml"
    assert (files["/assets/a-1.js"].fixed, files["/"].fixed) == (True, False)
    assert files["/"].etag != files["/icon.svg"].etag


def test_without_a_page_there_is_none(tmp_path: Path) -> None:
    assert page.load(None) == {}
    assert page.load(tmp_path) == {}
    assert page.load(tmp_path / "missing") == {}


def test_a_folder_that_is_no_page_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="no page"):
        page.load(built)


def test_the_policy_lets_in_the_page_and_its_services_only() -> None:
    policy = page.content_security_policy(["http://127.0.0.1:8001", "https://push.example"])
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (
        rules["connect-src"]
        == "'self' http://127.0.0.1:8001 ws://127.0.0.1:8001 https://push.example wss://push.example"
    )
    assert (rules["default-src"], rules["script-src"], rules["frame-ancestors"]) == (
        "'none'",
        "'self'",
        "'none'",
    )
    assert "unsafe" not in policy
