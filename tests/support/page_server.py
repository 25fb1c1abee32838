"""The built page behind a real server of its own, whose builds a test replaces as an upgrade does.
In place of the API it says that no user is signed in."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.routes import page
from tailrace.local import paths

ANSWERS: Final[dict[str, Any]] = {
    "/config.json": {"models": ["m"], "default_model": "m", "push_urls": [], "version": ""},
    "/ready": {"ready": True, "engine": {"state": "ready", "workers": 1, "detail": ""}},
    "/v1/session": {"object": "session", "subject": None},
}


def another_build(folder: Path, name: str) -> Path:
    """A build like the one in `frontend/dist`, whose files have other names and whose document says
    `name` as `data-build`."""
    shutil.copytree(paths.PAGE, folder)
    index = (folder / "index.html").read_text()
    found = re.search(r"/assets/(index-[\w-]+)\.js", index)
    assert found is not None
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".br", ".gz"):
            file.unlink()
        elif file.suffix in (".js", ".html"):
            file.write_text(file.read_text().replace(found[1], f"index-{name}"))
    script = (folder / "assets" / f"{found[1]}.js").rename(folder / "assets" / f"index-{name}.js")
    script.write_text(f'{script.read_text()}\ndocument.documentElement.dataset.build="{name}";')
    worker = folder / "sw.js"
    worker.write_text(re.sub(r'version:"\w+"', f'version:"{name}"', worker.read_text()))
    return folder


class PageServer:
    """
    Attributes:
        url: where it answers, on an address that browsers trust without TLS.
    """

    def __init__(self, url: str) -> None:
        self.url: Final = url
        self._application: Starlette = Starlette()

    def deploy(self, folder: Path) -> None:
        """From now on it serves this build, and none of the files of the one before."""
        answers = [Route(path, _json) for path in ANSWERS]
        self._application = Starlette(routes=[*answers, *page.Page(folder, []).routes()])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope, receive, send)


async def _json(request: Request) -> Response:
    return JSONResponse(ANSWERS[request.url.path])


@contextlib.contextmanager
def running() -> Iterator[PageServer]:
    """A server that has nothing deployed yet."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        served = PageServer(f"http://127.0.0.1:{bound.getsockname()[1]}")
        config = uvicorn.Config(served, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield served
        finally:
            server.should_exit = True
            thread.join()
