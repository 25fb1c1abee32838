"""The bill of materials, the licences and the audit of what is locked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts import supply_chain

ROOT = Path(__file__).resolve().parents[3]


def test_every_locked_package_is_in_the_bill() -> None:
    bill = supply_chain.bill()
    named = {each["purl"] for each in bill["components"]}
    assert len(named) == len(bill["components"]) == len(supply_chain.locked_packages())
    lock = (ROOT / "locks" / "requirements.lock").read_text()
    for line in lock.splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            name, _, version = line.split()[0].partition("==")
            assert f"pkg:pypi/{supply_chain.normal(name)}@{version}" in named
    node = json.loads((ROOT / "frontend" / "package-lock.json").read_text())["packages"]
    for place, each in node.items():
        if place:
            name = place.rpartition("node_modules/")[2].replace("@", "%40")
            assert f"pkg:npm/{name}@{each['version']}" in named
    sums = [(ROOT / "locks" / f"{name}-jars.sha256").read_text() for name in ("flink", "kafka")]
    jars = " ".join(sums).split()[::2]
    assert "pkg:maven/flink-shaded-asm-9@9.9.1-21.0" in named
    found = {h["content"] for each in bill["components"] for h in each.get("hashes", [])}
    assert set(jars) <= found


def test_the_bill_is_of_the_format_and_the_same_every_time() -> None:
    bill = supply_chain.bill()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    references = [each["bom-ref"] for each in bill["components"]]
    assert len(set(references)) == len(references)
    for each in bill["components"]:
        assert each["type"] == "library"
        for digest in each.get("hashes", []):
            assert len(digest["content"]) == {"SHA-256": 64, "SHA-512": 128}[digest["alg"]]
    assert bill == supply_chain.bill()


def test_every_locked_package_has_a_licence_that_is_allowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert supply_chain.main(["licences"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("GPL-3.0-or-later OR MIT", True),
        ("MIT AND GPL-3.0-or-later", False),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("MIT-like", False),
        (None, False),
    ],
)
def test_a_licence_that_is_not_allowed_is_named(licence: str | None, allowed: bool) -> None:
    why = supply_chain.refusal("some-package", licence)
    assert (why is None) is allowed
    assert allowed or licence is None or licence in str(why)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"license_expression": "MIT", "license": "a long text"}, "MIT"),
        ({"classifier": ["License :: OSI Approved :: MIT License"]}, "MIT"),
        ({"classifier": ["License :: OSI Approved"], "license": "Apache 2.0"}, "Apache-2.0"),
        ({"license": "BSD License\n\nCopyright"}, "BSD-3-Clause"),
        ({}, ""),
    ],
)
def test_a_packages_metadata_tells_its_licence(metadata: dict[str, Any], licence: str) -> None:
    assert supply_chain.licence_of(metadata) == licence


class Database(BaseHTTPRequestHandler):
    """Knows a vulnerability of one package; one answer is no JSON."""

    vulnerable = ""
    broken = False

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        results = [
            {"vulns": [{"id": "CVE-1"}]} if each["package"]["name"] == self.vulnerable else {}
            for each in asked
        ]
        body = b"<html>" if self.broken else json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def database() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Database)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_audit_names_what_is_vulnerable(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Database, "vulnerable", "starlette")
    assert supply_chain.main(["audit", "--database", database]) == 1
    output = capsys.readouterr().out
    assert "starlette" in output
    assert "CVE-1" in output
    monkeypatch.setattr(Database, "vulnerable", "")
    assert supply_chain.main(["audit", "--database", database]) == 0
    assert "0 findings" in capsys.readouterr().out


@pytest.mark.parametrize("broken", [True, False])
def test_an_audit_that_did_not_run_says_so(
    database: str,
    broken: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Database, "broken", broken)
    nowhere = "http://127.0.0.1:9"
    assert supply_chain.main(["audit", "--database", database if broken else nowhere]) == 3
    assert "NOT AUDITED" in capsys.readouterr().out
