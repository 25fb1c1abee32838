import ast
import asyncio
import http.server
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tailrace import log, telemetry
from tailrace.local import dev_credentials
from tailrace.telemetry import Action
from tests.support import cases

ROOT = Path(__file__).parents[4]
CANARY = "the prompt of a person"


class Lines:
    """What the process would have written to stderr."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def only(self) -> dict[str, Any]:
        (line,) = self.read()
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    captured = Lines()
    handler = logging.StreamHandler(captured.stream)
    handler.setFormatter(telemetry.JsonFormatter("worker", "worker-1"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield captured
    root.removeHandler(handler)
    root.setLevel(level)


# ---- lines


def test_a_line_is_one_json_object_with_who_when_and_what(lines: Lines) -> None:
    telemetry.log(
        Action.RESPONSE_ENDED,
        response="resp_1",
        status="completed",
        output_tokens=12,
        seconds=1.5,
        partitions=[1, 2],
    )
    line = lines.only()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "service": "worker",
        "name": "worker-1",
        "action": "response_ended",
        "response": "resp_1",
        "status": "completed",
        "output_tokens": 12,
        "seconds": 1.5,
        "partitions": [1, 2],
    }


@pytest.mark.parametrize(
    ("action", "level"),
    [
        (Action.SERVICE_STARTED, "info"),
        (Action.KAFKA_AWAY, "warning"),
        (Action.ENGINE_FAILED, "error"),
    ],
)
def test_the_level_follows_from_the_action(lines: Lines, action: Action, level: str) -> None:
    telemetry.log(action)
    assert lines.only()["level"] == level


def test_a_line_of_code_without_an_action_is_a_note(lines: Lines) -> None:
    logging.getLogger("some.library").warning("disk %s is full", "a")
    line = lines.only()
    assert (line["action"], line["logger"], line["message"]) == (
        "note",
        "some.library",
        "disk a is full",
    )


def test_control_characters_and_broken_text_cannot_leave_the_line(lines: Lines) -> None:
    telemetry.log(Action.WAITING, reason="a\nb\x1b[31m\ud800 é")
    assert lines.text.isascii()
    assert lines.text.count("\n") == 1
    assert lines.only()["reason"] == "a\nb\x1b[31m\ud800 é"


def test_a_number_that_json_does_not_have_keeps_the_line_readable(lines: Lines) -> None:
    telemetry.log(Action.WAITING, seconds=float("nan"), most=float("inf"))
    assert "NaN" not in lines.text
    assert (lines.only()["seconds"], lines.only()["most"]) == ("nan", "inf")


# ---- what must never be in a line

_PRIVATE, _ = dev_credentials.generate_key()
_JWT = dev_credentials.mint(_PRIVATE, "dev-1", "https://i", "tailrace", "me", time.time(), 60)


@pytest.mark.parametrize(
    "secret",
    [
        _JWT,
        f"Bearer {_JWT}",
        f"credential={_JWT}&x=1",
        "ticket.AAAAAAAAAAAAAAAAAAAAAA",
        "Authorization: bearer hunter2",
        "sk-" + "a" * 20,
        "redis://user:hunter2@host/0",
    ],
)
def test_a_secret_is_cut_out_of_any_text(lines: Lines, secret: str) -> None:
    telemetry.log(Action.WAITING, reason=f"before {secret} after")
    logging.getLogger("library").warning("refused %s", secret)
    logging.getLogger("library").warning("refused %s", [secret])
    for needle in (_JWT, _JWT.split(".")[1], "AAAAAAAAAAAA", "hunter2", "aaaaaaaaaa"):
        assert needle not in lines.text
    assert "[redacted]" in lines.text


@pytest.mark.parametrize(
    "name",
    [
        "prompt",
        "input",
        "output_text",
        "messages",
        "token",
        "Authorization",
        "user_prompt",
        "ids",
        "dev_credential",
    ],
)
@pytest.mark.parametrize(
    "value", [CANARY, [CANARY], {"role": CANARY}, {CANARY}], ids=["text", "list", "dict", "set"]
)
def test_fields_made_for_content_or_secrets_show_nothing_but_numbers(
    lines: Lines, name: str, value: Any
) -> None:
    telemetry.log(Action.WAITING, **{name: value, "detail": {name: value}})
    assert CANARY not in lines.text
    assert lines.only()[name] == "[redacted]"


def test_an_object_is_named_by_its_type_and_a_text_is_bounded(lines: Lines) -> None:
    class Request:
        def __repr__(self) -> str:
            return CANARY

    deep: Any = CANARY
    for _ in range(50):
        deep = [deep]
    telemetry.log(
        Action.WAITING,
        request=Request(),
        several=[Request()],
        deep=deep,
        blob=b"bytes",
        reason="x" * 10_000,
        many=list(range(1000)),
    )
    assert CANARY not in lines.text
    line = lines.only()
    assert (line["request"], line["several"], line["blob"]) == (
        "<Request>",
        ["<Request>"],
        "<bytes>",
    )
    assert len(line["reason"]) <= telemetry.MAX_TEXT + 1
    assert len(line["many"]) == 64


@pytest.mark.parametrize(
    "error",
    [
        ValueError(CANARY),
        KeyError(CANARY),
        AssertionError(CANARY),
        TypeError(CANARY),
        UnicodeEncodeError("utf-8", CANARY, 0, 1, CANARY),
        json.JSONDecodeError("x", CANARY, 0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_message_of_an_error_that_may_quote_content_is_not_shown(
    lines: Lines, error: Exception
) -> None:
    def failing() -> None:
        try:
            raise error
        except Exception as cause:
            raise ExceptionGroup(CANARY, [ValueError(CANARY)]) from cause

    try:
        failing()
    except ExceptionGroup as group:
        telemetry.log(Action.TASK_FAILED, exc_info=group)
    assert CANARY not in lines.text
    line = lines.only()
    assert line["error"] == "ExceptionGroup"
    assert line["cause"].endswith(type(error).__name__)
    assert any(
        "test_telemetry.py" in frame and frame.endswith("failing") for frame in line["trace"]
    )


@cases.each(
    ("error", "shown"),
    [
        (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError: [Errno 111] refused"),
        (log.LogUnavailable("no broker"), "tailrace.protocol.log_words.LogUnavailable: no broker"),
        (RuntimeError("CUDA out of memory"), "RuntimeError: CUDA out of memory"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_errors_of_the_system_and_of_our_own_say_what_went_wrong(
    error: Exception, shown: str
) -> None:
    assert telemetry.describe(error) == shown


async def test_an_exception_nobody_retrieved_does_not_show_its_message(lines: Lines) -> None:
    async def failing() -> None:
        raise ValueError(CANARY)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(None)
    task = asyncio.create_task(failing())
    await asyncio.wait([task])
    del task
    assert lines.only()["message"] == "Task exception was never retrieved"
    assert CANARY not in lines.text


# ---- metrics


def _metrics() -> dict[str, Any]:
    wrapped = (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)
    return {name: value for name, value in vars(telemetry).items() if isinstance(value, wrapped)}


def _label_names() -> Iterator[list[str]]:
    """Those of each metric, as the code makes it."""
    for path in (ROOT / "tailrace/telemetry").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("Counter" | "Gauge" | "Histogram"), args, keywords):
                    named = [each.value for each in keywords if each.arg == "labelnames"]
                    yield [
                        label for each in (*args[2:], *named) for label in ast.literal_eval(each)
                    ]


def test_every_metric_is_named_and_described_and_its_labels_are_closed_sets() -> None:
    closed = {
        "outcome",
        "code",
        "status",
        "reason",
        "kind",
        "field",
        "verdict",
        "pool",
        "to",
        "stage",
        "tokens",
        "topic",
        "partition",
        "client",  # of the log, by its purpose: a process has a dozen
    }
    assert len(_metrics()) > 30
    for metric in _metrics().values():
        (family,) = metric.describe()
        assert family.name.startswith("tailrace_")
        assert len(family.documentation) > 10
    named = list(_label_names())
    assert len(named) == len(_metrics())
    assert set().union(*named) <= closed


def test_no_other_module_defines_metrics() -> None:
    packages = [ROOT / name for name in ("gateway", "push", "worker", "tailrace")]
    sources = [
        path
        for package in packages
        for path in package.rglob("*.py")
        if path.parent.name != "telemetry"
    ]
    assert len(sources) > 10
    assert not [path for path in sources if "prometheus_client" in path.read_text(encoding="utf-8")]


# ---- spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(
        trace, "get_tracer", lambda name: provider.get_tracer(name)
    )  # the global provider can be set only once per process
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return exporter


def test_a_span_continues_in_the_reader_of_the_record(
    spans: InMemorySpanExporter, lines: Lines
) -> None:
    with telemetry.span("submit", pool="default"):
        headers = telemetry.trace_headers()
        telemetry.log(Action.RESPONSE_ACCEPTED)
    assert [name for name, _ in headers] == ["traceparent"]
    with telemetry.span("generate", telemetry.trace_context(headers)):
        pass
    submit, generate = spans.get_finished_spans()
    assert submit.context is not None
    assert generate.parent is not None
    assert generate.parent.span_id == submit.context.span_id
    assert dict(submit.attributes or {}) == {"tailrace.pool": "default"}
    assert lines.only()["trace_id"] == f"{submit.context.trace_id:032x}"


def test_a_failed_span_names_the_error_and_quotes_nothing(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match=CANARY), telemetry.span("submit", prompt=CANARY):
        raise ValueError(CANARY)
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert CANARY not in span.to_json()


def test_without_export_headers_are_empty_but_a_callers_context_is_handed_on() -> None:
    assert telemetry.trace_headers() == []
    given = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    token = otel_context.attach(telemetry.trace_context(given))
    try:
        assert telemetry.trace_headers() == given
    finally:
        otel_context.detach(token)


@cases.each(
    "headers",
    [
        [],
        [("traceparent", b"\xff\xfe")],
        [("traceparent", b"00-x")],
        [("traceparent", b"x" * 10_000)],
        [("other", b"1")],
        [("traceparent", None), ("baggage", None)],  # ended a worker with an AttributeError
    ],
)
def test_unreadable_headers_give_no_context(headers: list[tuple[str, bytes | None]]) -> None:
    context = telemetry.trace_context(headers)
    assert not trace.get_current_span(context).get_span_context().is_valid


# ---- setup, in a process of its own


def _run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_setup_twice_writes_each_line_once_and_only_to_stderr() -> None:
    done = _run(
        "import logging, warnings; from tailrace import telemetry as t\n"
        "t.setup('push', 'push-1'); t.setup('push', 'push-1')\n"
        "t.log(t.Action.SERVICE_STARTED, port=8001)\n"
        "logging.getLogger('httpx').info('GET /?q=secret')\n"
        "warnings.simplefilter('always'); warnings.warn('old', stacklevel=1)\n"
    )
    assert (done.returncode, done.stdout) == (0, "")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["name"], line["action"]) for line in lines] == [
        ("push-1", "service_started"),
        ("push-1", "note"),
    ]
    assert lines[1]["logger"] == "py.warnings"


def test_lines_of_libraries_keep_the_numbers_that_their_formats_ask_for() -> None:
    """Symptom: a traceback of the logging module for each of vLLM's own lines, which show process
    and line."""
    done = _run(
        "import logging, sys; from tailrace import telemetry as t\n"
        "t.setup('worker', 'worker-1')\n"
        "own = logging.StreamHandler(sys.stdout)\n"
        "own.setFormatter(logging.Formatter('pid=%(process)d line=%(lineno)d %(message)s'))\n"
        "library = logging.getLogger('vllm.x')\n"
        "library.addHandler(own)\n"
        "library.warning('eager')\n"
    )
    assert "Logging error" not in done.stderr
    assert done.stdout.startswith("pid=")
    assert done.stdout.endswith("line=7 eager\n")


def test_without_an_endpoint_nothing_of_the_exporter_is_loaded() -> None:
    done = _run(
        "import sys; from tailrace import telemetry as t\n"
        "t.setup('push', 'push-1')\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.exporter')])\n"
    )
    assert done.stdout == "[]\n"


class _Collector(http.server.BaseHTTPRequestHandler):
    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    received: list[tuple[str, bytes]] = []
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Collector", (_Collector,), {"received": received})
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    thread.join()
    server.server_close()


def test_with_an_endpoint_spans_arrive_there_by_the_time_the_process_ends(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    url, received = collector
    done = _run(
        "from tailrace import telemetry as t\n"
        "from fastapi import FastAPI\n"
        "from fastapi.testclient import TestClient\n"
        "import os; endpoint = os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']\n"
        "t.setup('gateway', 'gateway-7', endpoint); t.setup('gateway', 'gateway-7', endpoint)\n"
        "app = FastAPI(); t.instrument(app)\n"
        "@app.get('/v1/models')\n"
        "def models():\n"
        "    with t.span('inside'):\n"
        "        return [name for name, _ in t.trace_headers()]\n"
        "@app.get('/v1/shared/{token}')\n"
        "@app.get('/s/{token}')\n"
        "def shared(token):\n"
        "    return token\n"
        "client = TestClient(app)\n"
        "for path in ('/v1/shared/tok3n', '/s/tok3n', '/%73/tok3n', '/s/tok3n/x'):\n"
        "    client.get(path)\n"
        "print(client.get('/v1/models').json())\n",
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
    )
    assert done.stdout == "['traceparent']\n", done.stderr
    assert {path for path, _ in received} == {"/v1/traces"}
    body = b"".join(content for _, content in received)
    for word in (b"tailrace-gateway", b"gateway-7", b"inside", b"GET /v1/models"):
        assert word in body
    assert b"tok3n" not in body, "the address of a link is a credential"
