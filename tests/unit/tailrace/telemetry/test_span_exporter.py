"""What an OTLP receiver gets of a real application: no content, wherever it was put."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

CANARY = "canary5f1c"
# The provider of spans is one for a process, so the application has a process of its own.
PROGRAM = f"""
import fastapi, httpx, asyncio
from opentelemetry import trace
from tailrace import telemetry
from tailrace.telemetry import traces

traces.export_spans("gateway", "gateway-1")
app = fastapi.FastAPI()

@app.get("/v1/things/{{thing}}")
async def show(thing: str):
    with telemetry.span("look", size=3):
        pass
    if thing == "broken":
        raise KeyError("{CANARY}")

traces.instrument(app)

async def main():
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {{"user-agent": "{CANARY}", "x-{CANARY}": "{CANARY}", "host": "{CANARY}"}}
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        for path in ("/v1/things/fine?q={CANARY}", "/v1/things/broken", "/{CANARY}"):
            await client.get(path, headers=headers)
        await client.request("{CANARY}".upper(), "/v1/things/fine")

asyncio.run(main())
trace.get_tracer_provider().force_flush()
"""


@contextlib.contextmanager
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP receiver: its address, and the bodies it gets."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_no_content_leaves_with_the_spans_of_an_application() -> None:
    with receiver() as (address, bodies):
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=90
        )
    assert done.returncode == 0, done.stderr
    exported = b"".join(bodies)
    for known in (b"/v1/things/{thing}", b"http.status_code", b"tailrace.size", b"KeyError"):
        assert known in exported
    assert CANARY.encode() not in exported
    assert CANARY.upper().encode() not in exported
