"""The built page (`frontend/dist-admin`): its files, listed once, and their headers."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER: Final = Path(__file__).resolve().parents[2] / "frontend" / "dist-admin"
INDEX: Final = "admin.html"
MAX_FILES: Final = 100
MAX_BYTES: Final = 8 << 20
# Nothing but the page's own files, and connections to this service.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final[Mapping[str, str]] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}


class NoPage(Exception):
    """The folder is not a page."""


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]


class Files:
    """The files of a folder, in memory: no request can name another file."""

    def __init__(self, folder: Path) -> None:
        """Raises NoPage."""
        self._by_path = {
            f"/{path.relative_to(folder).as_posix()}": _file(path, folder)
            for path in _paths(folder)
        }
        if f"/{INDEX}" not in self._by_path:
            raise NoPage(f"{folder} has no {INDEX}: `npm run build` in frontend/ makes it")
        self._by_path["/"] = self._by_path.pop(f"/{INDEX}")

    def routes(self) -> list[BaseRoute]:
        """One for each file."""
        return [Route(path, self.serve, methods=["GET"]) for path in self._by_path]

    async def serve(self, request: Request) -> Response:
        """The file at the request's path."""
        file = self._by_path[request.scope["path"]]
        if request.headers.get("if-none-match") == file.headers["etag"]:
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)


def _paths(folder: Path) -> list[Path]:
    root = folder.resolve()
    paths = [
        path for path in folder.rglob("*") if path.is_file() and path.resolve().is_relative_to(root)
    ]
    if len(paths) > MAX_FILES or sum(path.stat().st_size for path in paths) > MAX_BYTES:
        raise NoPage(f"{folder} has more than {MAX_FILES} files or {MAX_BYTES} bytes")
    return paths


def _file(path: Path, folder: Path) -> _File:
    content = path.read_bytes()
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    # The name of an asset changes with its content.
    lasts = path.relative_to(folder).parts[0] == "assets"
    return _File(
        content,
        {
            "content-type": kind or "application/octet-stream",
            "content-security-policy": POLICY,
            "etag": f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"',
            "cache-control": "public, max-age=31536000, immutable" if lasts else "no-cache",
        },
    )
