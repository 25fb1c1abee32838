"""Serves the built page: its files in the encodings of the build, and their headers.

The files are listed once, at start, and each has a route of its own. So no request can name another
file, and all other paths belong to the API.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from tailrace import settings
from tailrace.protocol import share_tokens

MAX_FILES: Final = 500
MAX_BYTES: Final = 32 << 20
SHARED: Final = "/shared.html"
DIAGRAM: Final = "/diagram.html"
# The scripts of DIAGRAM, which the page shows in frames without an origin. To a browser such a
# frame is another site. The scripts are public.
_DIAGRAM_SCRIPTS: Final = re.compile(r"/diagram\.js|/assets/mermaid\.min-[\w-]+\.js")
# A model's text becomes markup in this document. So it loads nothing from elsewhere, sends nothing,
# and has no origin wherever it is opened. Diagrams use inline styles.
DIAGRAM_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
ENCODINGS: Final = {".br": "br", ".gz": "gzip"}  # the best first
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One file in one encoding. `path` is relative to the page's folder."""

    path: str
    headers: Mapping[str, str]


class Page(StaticFiles):
    """Serves the files of a folder.

    Attributes:
        _variants: by URL path and encoding; the empty encoding is the file as it is.
        _headers: of each variant, by its full path.
    """

    def __init__(self, folder: Path, push_urls: Sequence[str]) -> None:
        """
        Raises:
            settings.Misconfigured: the folder exceeds the limits of a page.
        """
        super().__init__(directory=folder)
        self._push_urls = tuple(push_urls)
        self._variants: dict[str, dict[str, Variant]] = {}
        root = folder.resolve()
        names = _names(folder)
        for name in sorted(names):
            if any(name.endswith(s) and name.removesuffix(s) in names for s in ENCODINGS):
                continue  # a variant of another file
            paths = {"": name, **{e: name + s for s, e in ENCODINGS.items() if name + s in names}}
            self._variants[f"/{name}"] = {
                encoding: Variant(path, _headers(name, encoding, (root / path).read_bytes()))
                for encoding, path in paths.items()
            }
        if "/index.html" in self._variants:
            self._variants["/"] = self._variants["/index.html"]
        self._headers = {
            str(root / variant.path): variant.headers
            for variants in self._variants.values()
            for variant in variants.values()
        }

    def routes(self) -> list[BaseRoute]:
        """One route for each file; none while the page is not built."""
        if "/" not in self._variants:
            return []
        routes = [Route(path, self.serve, methods=["GET"]) for path in self._variants]
        if SHARED in self._variants:
            routes.append(Route(f"{share_tokens.PATH}{{token}}", self.shared, methods=["GET"]))
        return [*routes]

    async def serve(self, request: Request) -> Response:
        """The file at the request's path, in the best encoding that the client accepts."""
        return await self._file(request, request.scope["path"])

    async def shared(self, request: Request) -> Response:
        """The page of a link to a conversation. It reads the token from its own address."""
        response = await self._file(request, SHARED)
        response.headers["x-robots-tag"] = "noindex"
        return response

    async def _file(self, request: Request, path: str) -> Response:
        variants = self._variants[path]
        encodings = accepted_encodings(request.headers.get("accept-encoding", ""))
        best = next((e for e in ENCODINGS.values() if e in variants and e in encodings), "")
        response = await self.get_response(variants[best].path, request.scope)
        response.headers.update(security_headers(path, self._push_urls))
        return response

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """The file with its own headers. Starlette would compute the etag from time and size, which
        two builds may share."""
        headers = self._headers[str(full_path)]
        response = FileResponse(
            full_path, status_code, headers=dict(headers), stat_result=stat_result
        )
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


def accepted_encodings(header: str) -> set[str]:
    """The codings in an `Accept-Encoding` header, without those of weight 0."""
    codings = set()
    for part in header.lower().split(","):
        coding, _, weight = part.replace(" ", "").partition(";")
        if not re.fullmatch(r"q=0(\.0*)?", weight):
            codings.add(coding)
    return codings


def _names(folder: Path) -> set[str]:
    """Paths of the page's files, relative to its folder, without links out of it."""
    root = folder.resolve()
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.resolve().is_relative_to(root)
    ]
    if len(files) > MAX_FILES or sum(path.stat().st_size for path in files) > MAX_BYTES:
        raise settings.Misconfigured(
            f"TAILRACE_PAGE: {folder} exceeds the limits of a page: more than {MAX_FILES} files or "
            f"{MAX_BYTES} bytes"
        )
    return {path.relative_to(folder).as_posix() for path in files}


def _headers(name: str, encoding: str, content: bytes) -> dict[str, str]:
    suffix = Path(name).suffix
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    # The name of an asset changes with its content. Everything else is revalidated each time, above
    # all the service worker: a browser with an old one does not notice a new page.
    immutable = name.startswith("assets/")
    headers = {
        "content-type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
        "etag": f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"',
        "cache-control": "public, max-age=31536000, immutable" if immutable else "no-cache",
        "vary": "accept-encoding",
    }
    return {**headers, "content-encoding": encoding} if encoding else headers


def security_headers(path: str, push_urls: Sequence[str]) -> dict[str, str]:
    """Headers of the file at this path. They add to, or replace, those of every answer
    (`tailrace.web.middleware`)."""
    if path == DIAGRAM:
        return {"content-security-policy": DIAGRAM_POLICY, "x-frame-options": "SAMEORIGIN"}
    headers = {"content-security-policy": content_security_policy(push_urls)}
    if _DIAGRAM_SCRIPTS.fullmatch(path):
        headers["cross-origin-resource-policy"] = "cross-origin"
    return headers


def content_security_policy(push_urls: Sequence[str]) -> str:
    """A policy that allows only the page's own files and frames, and connections to this gateway
    and the push services."""
    connect = ["'self'"]
    for url in push_urls:
        connect += [url, "ws" + url.removeprefix("http")]
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "font-src": "'self'",
        "manifest-src": "'self'",
        "worker-src": "'self'",
        "frame-src": "'self'",
        "connect-src": " ".join(connect),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
