"""An HTTP server that imitates what sinks use of OpenSearch (`_bulk` with external versions) and of
ClickHouse (inserts into a table that keeps the highest version of a key)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

SECRET: Final = b"a value of a row"  # in the text of every error


class Asked(NamedTuple):
    path: str
    query: dict[str, str]
    body: str
    headers: dict[str, str]


class DatabaseServer:
    """
    Attributes:
        asked: the requests so far.
        statuses: of the next requests as a whole, which then do nothing.
        items: (status, error type) of the next documents with these ids, which then are not kept.
        rows: (version, document or row) by id or source.
        written: how many documents or rows were kept, each replacement too.
        answer: given as it is instead of that of a bulk request.
        code: of ClickHouse, in the errors.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.statuses: list[int] = []
        self.items: dict[str, list[tuple[int, str]]] = {}
        self.rows: dict[str, tuple[int, Any]] = {}
        self.written = 0
        self.answer: bytes | None = None
        self.code = 241
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = Asked(parts.path, dict(parse_qsl(parts.query)), body, dict(self.headers))
                outer.asked.append(asked)
                status = outer.statuses.pop(0) if outer.statuses else 200
                said = SECRET if status != 200 else outer.done(asked)
                self.send_response(status)
                if status != 200:
                    self.send_header("X-ClickHouse-Exception-Code", str(outer.code))
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def done(self, asked: Asked) -> bytes:
        lines = [json.loads(line) for line in asked.body.splitlines() if line]
        if not asked.path.endswith("/_bulk"):
            for row in lines:
                if "source" in row:
                    self._keep(row["source"], row["version"], row, strict=False)
            return b""
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            about = action["index"]
            assert about["version_type"] == "external"
            if planned := self.items.get(about["_id"]):
                status, kind = planned.pop(0)
            elif self._keep(about["_id"], about["version"], document, strict=True):
                status, kind = 201, ""
            else:
                status, kind = 409, "version_conflict_engine_exception"
            item = {"_id": about["_id"], "status": status}
            items.append({"index": item | ({"error": {"type": kind}} if kind else {})})
        return json.dumps({"items": items}).encode() if self.answer is None else self.answer

    def _keep(self, key: str, version: int, row: Any, *, strict: bool) -> bool:
        there = self.rows.get(key, (-1, None))[0]
        if version < there or (strict and version == there):
            return False
        self.rows[key] = version, row
        self.written += 1
        return True
