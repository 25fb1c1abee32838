"""The built page, and the headers that go with it.

All files are read once, at start, into a table by path; a request is a look-up in that table. So no
request can name a file that is not the page's.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_FILES: Final = 500
MAX_BYTES: Final = 32 << 20
_TYPES: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page. `fixed`: its name changes with its content, so it may be cached for
    ever."""

    body: bytes
    content_type: str
    etag: str
    fixed: bool


def load(folder: Path | None) -> dict[str, File]:
    """The files by URL path; `/` is `index.html`. Empty without a folder, or when it was not built
    yet.

    Raises:
        ValueError: more than a page can be.
    """
    if folder is None or not (folder / "index.html").is_file():
        return {}
    files = dict(_files(folder))
    files["/"] = files["/index.html"]
    return files


def _files(folder: Path) -> Iterator[tuple[str, File]]:
    total, root = 0, folder.resolve()
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    for path in paths:
        if not path.resolve().is_relative_to(root):
            continue  # a link out of the folder is not part of the page
        body = path.read_bytes()
        total += len(body)
        if total > MAX_BYTES or len(paths) > MAX_FILES:
            raise ValueError(
                f"{folder} is no page: more than {MAX_FILES} files or {MAX_BYTES} bytes"
            )
        name = "/" + path.relative_to(folder).as_posix()
        kind = (
            _TYPES.get(path.suffix)
            or mimetypes.guess_type(path.name)[0]
            or "application/octet-stream"
        )
        etag = '"' + hashlib.blake2b(body, digest_size=12).hexdigest() + '"'
        yield (
            name,
            File(
                body,
                f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
                etag,
                name.startswith("/assets/"),
            ),
        )


def content_security_policy(push_urls: Sequence[str]) -> str:
    """Nothing but the page's own files, and connections to this gateway and the push services."""
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
        "connect-src": " ".join(connect),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())
