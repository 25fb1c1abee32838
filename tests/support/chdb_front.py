"""ClickHouse's HTTP interface before its own engine (the package `chdb-core`), as far as the store
of analytics uses it.

Run by a Python that has the package: `PYTHON chdb_front.py FOLDER PORT USER PASSWORD_FILE`. The
statements are the engine's affair; the login, the parameters and the statuses are imitated here. It
imports nothing of the project.
"""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from chdb import session  # type: ignore[import-not-found,unused-ignore]

FOLDER, PORT, USER, PASSWORD_FILE = sys.argv[1:]
BAD_REQUEST = {27, 62, 117}  # unreadable input, syntax, a column that is not known
NOT_FOUND = {60, 81}  # table, database


class Front(BaseHTTPRequestHandler):
    """One request is one statement."""

    protocol_version = "HTTP/1.1"
    engine = session.Session(FOLDER)
    one = threading.Lock()  # connections have threads; the engine's session has one user

    def do_POST(self) -> None:
        """Run it, with the settings of the parameters."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = dict(parse_qsl(urlsplit(self.path).query))
        password = Path(PASSWORD_FILE).read_text()
        if (
            self.headers["X-ClickHouse-User"] != USER
            or self.headers["X-ClickHouse-Key"] != password
        ):
            self._answer(403, "", 516)
            return
        with self.one:
            said = self._run(given, body)
        self._answer(*said)

    def _run(self, given: dict[str, str], body: str) -> tuple[int, str, int]:
        """The status, the text and the code of the engine's answer."""
        database, query = given.pop("database"), given.pop("query")
        given.pop("wait_end_of_query")  # of the interface, not of the engine
        try:
            self.engine.query(f"USE {database}")
            for name, value in given.items():
                self.engine.query(f"SET {name} = '{value}'")
            return 200, str(self.engine.query(f"{query}\n{body}", "JSONCompactEachRow")), 0
        except Exception as error:
            found = re.search(r"Code: (\d+)", str(error))
            code = int(found[1]) if found else 0
            status = 400 if code in BAD_REQUEST else 404 if code in NOT_FOUND else 500
            return status, str(error), code
        finally:
            # They are this request's, and the session lasts.
            for name in given:
                self.engine.query(f"SET {name} = DEFAULT")

    def _answer(self, status: int, text: str, code: int) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


Front.engine.query("CREATE DATABASE IF NOT EXISTS analytics")
ThreadingHTTPServer(("127.0.0.1", int(PORT)), Front).serve_forever()
