"""Logging and tracing of one process; the first call in every `main`."""

import logging
import sys
from typing import Final

from tailrace.telemetry.lines import JsonFormatter
from tailrace.telemetry.traces import export_spans, exporting

# Libraries that write too much at INFO, addresses of users among it.
_QUIET_LOGGERS: Final = (
    "uvicorn.access",
    "httpx",
    "httpcore",
    "opentelemetry",
    "asyncio",
)


def setup(role: str, name: str, otlp_endpoint: str = "") -> None:
    """Write lines of the whole process to stderr, and export spans when `otlp_endpoint` is not
    empty. The exporter reads the endpoint and its other `OTEL_` variables itself. May be called
    again."""
    root = logging.getLogger()
    for old in [
        handler for handler in root.handlers if isinstance(handler.formatter, JsonFormatter)
    ]:
        root.removeHandler(old)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(role, name))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    # Every record looks them up, and no line shows them. (vLLM's own lines show the process.)
    logging.logThreads = logging.logMultiprocessing = False
    # A line for each invalid HTTP request would let clients fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    for quiet in _QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    if otlp_endpoint and not exporting():
        export_spans(role, name)
