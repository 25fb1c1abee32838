"""The page is a set of files, each sent in the encoding that the client accepts, and nothing else
can be asked for."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from gateway.routes import page
from tailrace import settings
from tailrace.web import error_mapping

SCRIPT = b"let x = 1; " * 500


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>x</title>")
    (folder / "assets" / "a-1.js").write_bytes(SCRIPT)
    (folder / "assets" / "a-1.js.gz").write_bytes(gzip.compress(SCRIPT))
    (folder / "assets" / "a-1.js.br").write_bytes(b"brotli")
    (folder / "icon.svg").write_text("<svg/>")
    (folder / "icon-192.png").write_bytes(b"png")
    (folder / "manifest.webmanifest").write_text("{}")
    (folder / "sw.js").write_bytes(SCRIPT)
    (folder / "sw.js.br").write_bytes(b"brotli")
    (folder / "diagram.html").write_text("<title>diagram</title>")
    (folder / "diagram.js").write_text("draw()")
    (folder / "assets" / "mermaid.min-Ab_c-1.js").write_text("mermaid")
    (folder / "shared.html").write_text("<title>shared</title>")
    (folder / "download.gz").write_bytes(b"not a variant")
    (tmp_path / "secret").write_text("s3cret")
    (folder / "leak").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    return folder


@pytest.fixture
async def browser(built: Path) -> AsyncIterator[httpx.AsyncClient]:
    routes = page.Page(built, ["https://push.example"]).routes()
    app = Starlette(routes=routes, exception_handlers=error_mapping.HANDLERS)
    app.router.redirect_slashes = False
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        client.headers["accept-encoding"] = "identity"
        yield client


async def test_the_files_have_their_types_policy_and_cache_headers(
    browser: httpx.AsyncClient,
) -> None:
    index = await browser.get("/")
    assert (index.status_code, index.text) == (200, "<title>x</title>")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert index.headers["cache-control"] == "no-cache"
    assert "https://push.example" in index.headers["content-security-policy"]
    assert (await browser.get("/index.html")).headers["etag"] == index.headers["etag"]
    script = await browser.get("/assets/a-1.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"]
    icon = await browser.get("/icon.svg")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert icon.headers["etag"] != index.headers["etag"]
    assert (await browser.get("/icon-192.png")).headers["content-type"] == "image/png"
    manifest = await browser.get("/manifest.webmanifest")
    assert manifest.headers["content-type"] == "application/manifest+json"
    worker = await browser.head("/sw.js", headers={"accept-encoding": "br"})
    assert worker.headers["content-type"] == "text/javascript; charset=utf-8"
    assert worker.headers["cache-control"] == "no-cache"
    assert worker.headers["content-encoding"] == "br"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br, zstd", "br"),
        ("gzip", "gzip"),
        ("GZIP;q=0.5, br;q=0", "gzip"),
        ("br; q=0.000, gzip; q=0", None),
        ("identity", None),
        ("", None),
    ],
)
async def test_the_best_encoding_that_the_client_accepts_is_sent(
    browser: httpx.AsyncClient, accepted: str, encoding: str | None
) -> None:
    request = browser.build_request("GET", "/assets/a-1.js", headers={"accept-encoding": accepted})
    answer = await browser.send(request, stream=True)
    raw = b"".join([part async for part in answer.aiter_raw()])
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["vary"] == "accept-encoding"
    assert int(answer.headers["content-length"]) == len(raw)
    expected = {"br": b"brotli", None: SCRIPT}
    assert raw == expected[encoding] if encoding != "gzip" else gzip.decompress(raw) == SCRIPT


async def test_a_client_that_has_the_file_is_told_so_for_each_encoding_apart(
    browser: httpx.AsyncClient,
) -> None:
    tags = set()
    for accepted in ("identity", "gzip"):
        headers = {"accept-encoding": accepted}
        first = await browser.get("/assets/a-1.js", headers=headers)
        tags.add(first.headers["etag"])
        headers["if-none-match"] = first.headers["etag"]
        again = await browser.get("/assets/a-1.js", headers=headers)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["content-security-policy"]
    assert len(tags) == 2


async def test_the_etag_tells_two_builds_apart_that_share_time_and_size(built: Path) -> None:
    index = built / "index.html"
    before = index.stat()
    tags = set()
    for content in ("<title>x</title>", "<title>y</title>"):
        index.write_text(content)

        os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))
        transport = httpx.ASGITransport(Starlette(routes=page.Page(built, []).routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            tags.add((await client.get("/")).headers["etag"])
    assert len(tags) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/leak",
        "/out/secret",
        "/../secret",
        "/%2e%2e/secret",
        "/assets/..%2f..%2fsecret",
        "/assets/%2e%2e/%2e%2e/secret",
        "//etc/passwd",
        "/assets",
        "/assets/",
        "/index.html/",
        "/assets/a-1.js.gz",
        "/assets/a-1.js.br",
        "/assets/a-1.js%00",
        "/no-such",
    ],
)
async def test_no_request_names_a_file_that_is_not_the_pages(
    browser: httpx.AsyncClient, path: str
) -> None:
    request = browser.build_request("GET", "http://here")
    request.url = httpx.URL("http://here").copy_with(raw_path=path.encode())
    answer = await browser.send(request)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "s3cret" not in answer.text


async def test_a_compressed_file_that_is_no_variant_is_a_file_of_its_own(
    browser: httpx.AsyncClient,
) -> None:
    answer = await browser.get("/download.gz")
    assert answer.content == b"not a variant"
    assert "content-encoding" not in answer.headers


async def test_only_get_and_head_are_allowed(browser: httpx.AsyncClient) -> None:
    head = await browser.head("/assets/a-1.js")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(SCRIPT)
    assert (await browser.post("/")).status_code == 405


def test_without_a_built_page_there_are_no_routes(tmp_path: Path) -> None:
    assert page.Page(tmp_path, []).routes() == []


def test_a_folder_that_is_no_page_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_BYTES", 10)
    with pytest.raises(settings.Misconfigured, match="TAILRACE_PAGE"):
        page.Page(built, [])


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
    assert (rules["worker-src"], rules["manifest-src"]) == ("'self'", "'self'")
    assert "unsafe" not in policy


async def test_the_document_of_diagrams_is_isolated_and_only_its_scripts_are_for_others(
    browser: httpx.AsyncClient,
) -> None:
    document = await browser.get("/diagram.html")
    etag = {"if-none-match": document.headers["etag"]}
    for answer in (document, await browser.get("/diagram.html", headers=etag)):
        policy = answer.headers["content-security-policy"]
        rules = dict(rule.partition(" ")[::2] for rule in policy.split("; "))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'unsafe-inline'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'self'",
            "sandbox": "allow-scripts",
        }
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"
    for path in ("/diagram.js", "/assets/mermaid.min-Ab_c-1.js"):
        script = await browser.get(path)
        assert script.headers["cross-origin-resource-policy"] == "cross-origin"
        assert "unsafe" not in script.headers["content-security-policy"]
    for path in ("/", "/assets/a-1.js", "/s/token", "/diagram.html", "/sw.js"):
        assert "cross-origin-resource-policy" not in (await browser.get(path)).headers
    page_itself = await browser.get("/")
    assert "frame-src 'self'; " in page_itself.headers["content-security-policy"]
    assert "x-frame-options" not in page_itself.headers


async def test_every_link_has_one_page_which_search_engines_leave_alone(
    browser: httpx.AsyncClient,
) -> None:
    index = await browser.get("/")
    for path in ("/s/any-token", "/s/another"):
        page_of_link = await browser.get(path)
        assert (page_of_link.status_code, page_of_link.text) == (200, "<title>shared</title>")
        assert page_of_link.headers["x-robots-tag"] == "noindex"
        policy = "content-security-policy"
        assert page_of_link.headers[policy] == index.headers[policy]
    etag = {"if-none-match": page_of_link.headers["etag"]}
    assert (await browser.get("/s/any-token", headers=etag)).status_code == 304
    for path in ("/s/", "/s", "/s/a/b", "/s/a/../../secret", "/s/%2e%2e%2fsecret"):
        assert (await browser.get(path)).status_code == 404


async def test_a_page_that_was_built_without_it_has_none(built: Path) -> None:
    (built / "shared.html").unlink()
    app = Starlette(routes=page.Page(built, []).routes())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        assert (await client.get("/s/token")).status_code == 404
