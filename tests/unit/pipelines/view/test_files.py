"""The built page, as it is sent."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from pipelines.view import files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page/assets").mkdir(parents=True)
    (tmp_path / "page/admin.html").write_text("<p>page</p>")
    (tmp_path / "page/assets/a.js").write_text("1")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "page/link").symlink_to(tmp_path / "secret")
    return tmp_path / "page"


async def got(folder: Path, path: str, **headers: str) -> httpx.Response:
    app = Starlette(routes=files.Files(folder).routes())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        return await client.get(path, headers=headers)


async def test_the_page_is_at_the_root_under_a_strict_policy(folder: Path) -> None:
    answer = await got(folder, "/")
    assert (answer.status_code, answer.text) == (200, "<p>page</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-cache"
    again = await got(folder, "/", **{"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_assets_last(folder: Path) -> None:
    answer = await got(folder, "/assets/a.js")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize("path", ["/link", "/../secret", "/assets/%2e%2e/%2e%2e/secret", "/b"])
async def test_no_other_file_can_be_named(folder: Path, path: str) -> None:
    assert (await got(folder, path)).status_code == 404


def test_a_folder_without_the_page_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(files.NoPage, match="npm run build"):
        files.Files(tmp_path)
