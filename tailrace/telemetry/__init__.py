"""What a process tells about itself: JSON lines on stderr, Prometheus metrics, OpenTelemetry spans
(`tailrace.telemetry.health` shows the metrics).

    setup(role, name)                  once, first thing in a process
    log(Action.X, field=value)         a line; the actions are a closed set
    REQUESTS.labels(...).inc()         every metric of the product is defined here and nowhere else
    span(...), trace_headers()         context through Kafka headers

Never in a line, label or span: prompts, outputs, credentials, tickets. `guarded` and the formatter
are the second line behind that rule.
"""

import asyncio
import contextlib
import datetime
import enum
import functools
import json
import logging
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import prometheus_client
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from prometheus_client import Counter, Gauge, Histogram

# ---- lines
# -----------------------------------------------------------------------------------------


class Action(enum.StrEnum):
    SERVICE_STARTED = "service_started"
    SERVICE_STOPPED = "service_stopped"
    DRAIN_STARTED = "drain_started"
    WAITING = "waiting"  # for a part that is not there yet
    TASK_FAILED = "task_failed"
    NOTE = "note"  # a line of a library, or of code that logs without an action

    SOCKET_OPENED = "socket_opened"
    SOCKET_CLOSED = "socket_closed"
    SOCKET_REFUSED = "socket_refused"
    SOCKET_FAILED = "socket_failed"
    STREAM_BROKEN = "stream_broken"
    REQUEST_FAILED = "request_failed"
    KEY_SET_FAILED = "key_set_failed"

    RESPONSE_ACCEPTED = "response_accepted"
    RESPONSE_CLAIMED = "response_claimed"
    RESPONSE_TAKEN_OVER = "response_taken_over"
    RESPONSE_LOST = "response_lost"  # another worker has claimed it
    RESPONSE_ENDED = "response_ended"
    DEAD_LETTER = "dead_letter"

    ENGINE_LOADING = "engine_loading"
    ENGINE_READY = "engine_ready"
    ENGINE_FAILED = "engine_failed"
    ENGINE_FALLBACK = "engine_fallback"  # to the slower public API of its library
    ENGINE_STOPPED = "engine_stopped"

    PARTITIONS_ASSIGNED = "partitions_assigned"
    PARTITIONS_REVOKED = "partitions_revoked"
    PRODUCER_REPLACED = "producer_replaced"
    CONSUMER_REPLACED = "consumer_replaced"
    RECORD_UNREADABLE = "record_unreadable"
    KAFKA_AWAY = "kafka_away"
    KAFKA_BACK = "kafka_back"
    REDIS_AWAY = "redis_away"
    REDIS_BACK = "redis_back"


_LEVELS: Final[dict[Action, int]] = {
    Action.TASK_FAILED: logging.ERROR,
    Action.SOCKET_FAILED: logging.ERROR,
    Action.REQUEST_FAILED: logging.ERROR,
    Action.ENGINE_FAILED: logging.ERROR,
    Action.DEAD_LETTER: logging.ERROR,
    Action.WAITING: logging.WARNING,
    Action.STREAM_BROKEN: logging.WARNING,
    Action.KEY_SET_FAILED: logging.WARNING,
    Action.ENGINE_FALLBACK: logging.WARNING,
    Action.PRODUCER_REPLACED: logging.WARNING,
    Action.CONSUMER_REPLACED: logging.WARNING,
    Action.RECORD_UNREADABLE: logging.WARNING,
    Action.KAFKA_AWAY: logging.WARNING,
    Action.REDIS_AWAY: logging.WARNING,
}

_logger: Final = logging.getLogger("tailrace")
_encode: Final = msgspec.json.Encoder().encode


def log(action: Action, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """One line. Fields are numbers, short texts and lists of them; anything else is named by its
    type only."""
    level = _LEVELS.get(action, logging.INFO)
    if _logger.isEnabledFor(level):
        caught = (
            (type(exc_info), exc_info, exc_info.__traceback__) if exc_info is not None else None
        )
        # Not Logger.log, which walks the stack for a file and a line that no line shows: half of
        # what a line costs.
        _logger.handle(
            _logger.makeRecord(
                _logger.name,
                level,
                "",
                0,
                action.value,
                (),
                caught,
                None,
                {"action": action.value, "fields": fields},
            )
        )


MAX_TEXT: Final = 300  # characters of a text in a line
_MAX_ITEMS: Final = 64
_MAX_DEPTH: Final = 4
_REDACTED: Final = "[redacted]"

# Fields of these names, alone or as the last word of a longer name, never show a text. Numbers
# pass: `output_tokens=12` is what lines are for.
_CLOSED_FIELDS: Final = (
    frozenset(
        (
            "token",
            "ticket",
            "credential",
            "credentials",
            "authorization",
            "cookie",
            "secret",
            "password",
            "header",
            "headers",
            "query",
        )
    )
    | frozenset(
        (
            "prompt",
            "prompts",
            "input",
            "inputs",
            "output",
            "outputs",
            "text",
            "delta",
            "content",
            "messages",
            "instructions",
        )
    )
    | frozenset(("body", "payload", "arguments", "metadata", "ids"))
)
_SECRET_TEXT: Final = re.compile(
    r"eyJ[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)+"  # JWT: a base64url JSON object and more parts
    r"|(?i:bearer[ .])\S+"
    r"|\bticket\.[A-Za-z0-9_-]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|(?<=://)[^/@\s]*:[^/@\s]*(?=@)"  # user:password of a URL
    r"|-----BEGIN [^\n]*"
)


def guarded(name: str, value: Any, depth: int = 0) -> Any:
    """`value` as it may appear in a line under `name`."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no other numbers
    if name.lower().rpartition("_")[2] in _CLOSED_FIELDS:
        return _REDACTED
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {
            redacted(str(key)): guarded(str(key), value[key], depth + 1)
            for key in list(value)[:_MAX_ITEMS]
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < _MAX_DEPTH:
        return [guarded("", each, depth + 1) for each in list(value)[:_MAX_ITEMS]]
    return f"<{type(value).__name__}>"  # its repr could hold anything


def redacted(text: str) -> str:
    shown = _SECRET_TEXT.sub(_REDACTED, text[: MAX_TEXT * 20])
    return shown if len(shown) <= MAX_TEXT else shown[:MAX_TEXT] + "…"


# Their messages say what went wrong in words of the program or the system. Those of the others
# (ValueError, KeyError, validation) like to quote the value that was wrong, which may be somebody's
# prompt.
_PLAIN_ERRORS: Final = (OSError, RuntimeError, ImportError, MemoryError)
_PLAIN_PACKAGES: Final = frozenset(
    {"gateway", "push", "worker", "tailrace", "aiokafka", "redis", "httpx"}
)


def describe(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    plain = isinstance(error, _PLAIN_ERRORS) or kind.__module__.partition(".")[0] in _PLAIN_PACKAGES
    text = redacted(str(error)) if plain else ""
    return f"{name}: {text}" if text else name


def _frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [
        f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames
    ]


def _error_fields(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {"error": describe(error), "trace": _frames(error)}
    if isinstance(error, BaseExceptionGroup):
        fields["inner"] = [_error_fields(each) for each in error.exceptions[:5]]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        fields["cause"] = describe(cause)
    return fields


class JsonFormatter(logging.Formatter):
    """ASCII only, so no control character reaches a terminal and every text can be written."""

    def __init__(self, role: str, name: str) -> None:
        super().__init__()
        self._who = {"service": role, "name": name}

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
            timespec="milliseconds"
        )
        line: dict[str, Any] = {"time": when, "level": record.levelname.lower(), **self._who}
        action = getattr(record, "action", None)
        if action is None:
            # The first line only: asyncio, for one, writes the repr of a task and its exception
            # below it.
            message = redacted(record.getMessage().partition("\n")[0])
            line |= {"action": Action.NOTE.value, "logger": record.name, "message": message}
        else:
            line |= {
                "action": action,
                **{key: guarded(key, value) for key, value in record.__dict__["fields"].items()},
            }
        if record.exc_info and record.exc_info[1] is not None:
            line |= _error_fields(record.exc_info[1])
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            line["trace_id"] = f"{current.trace_id:032x}"
        with contextlib.suppress(UnicodeError, OverflowError, TypeError):
            encoded = _encode(line).decode("ascii")
            if encoded.isprintable():
                return encoded
        return json.dumps(
            line, default=lambda value: f"<{type(value).__name__}>", separators=(",", ":")
        )  # five times as slow, but it can spell everything


# ---- Kafka's client while the broker is away
# ---------------------------------------------------------

# without a complaint for so long, the broker is back (the client complains several times a second)
QUIET_S: Final = 5.0
REPEAT_S: Final = 60.0  # other complaints of the client: each kind at most once in this time

_AWAY_MESSAGES: Final = (
    "Unable connect to node",
    "Unable to update metadata",
    "Unable to request metadata",
    "Failed fetch messages",
    "Got error produce response: ",
    "Error sending %s to node",
    "Heartbeat send request failed",
)


class KafkaComplaints:
    """Folds what aiokafka logs, hundreds of lines in ten seconds, into what a person wants to know.
    Decides only; times come in as arguments.

    Attributes:
        away_since: when the first connection complaint came; None while all is well
        complaints: how many lines were swallowed since then
    """

    def __init__(self) -> None:
        self.away_since: float | None = None
        self.complaints = 0
        self._last = 0.0  # time of the latest complaint while away
        self._said: dict[str, float] = {}  # message template -> when it was last let through

    def complain(self, template: str, now: float) -> Action | None:
        """KAFKA_AWAY: say so. NOTE: let this line through. None: swallow it."""
        if self.away_since is not None:
            self.complaints += 1
            self._last = now
            return None
        if template.startswith(_AWAY_MESSAGES):
            self.away_since = self._last = now
            self.complaints = 1
            return Action.KAFKA_AWAY
        if now - self._said.get(template, -REPEAT_S) < REPEAT_S:
            return None
        self._said[template] = now
        return Action.NOTE

    def back(self, now: float) -> float | None:
        """Seconds away, once, when it has been quiet long enough; None before that."""
        if self.away_since is None or now - self._last < QUIET_S:
            return None
        away_s, self.away_since = self._last - self.away_since, None
        return away_s


class KafkaHandler(logging.Handler):
    """On the logger "aiokafka". The return is noticed by a timer of the running loop, or else at
    the next complaint."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._complaints = KafkaComplaints()

    def emit(self, record: logging.LogRecord) -> None:
        self._look()
        verdict = self._complaints.complain(str(record.msg), self._clock())
        if verdict is Action.KAFKA_AWAY:
            KAFKA_AWAY.set(1)
            log(Action.KAFKA_AWAY, reason=record.getMessage())
            self._look_later()
        elif verdict is Action.NOTE:
            logging.getLogger().handle(record)

    def _look(self) -> bool:
        away_s = self._complaints.back(self._clock())
        if away_s is None:
            return False
        KAFKA_AWAY.set(0)
        log(Action.KAFKA_BACK, seconds=round(away_s, 1), complaints=self._complaints.complaints)
        return True

    def _look_later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(1.0, self._look_and_go_on)

    def _look_and_go_on(self) -> None:
        if self._complaints.away_since is not None and not self._look():
            self._look_later()


# ---- metrics
# --------------------------------------------------------------------------------------- Labels are
# closed sets. Ids, users, models named by clients and texts never are labels.

_FAST: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.15,
    0.2,
    0.25,
    0.35,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    30,
    60,
)
_SHORT: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.2,
    0.5,
    1,
    2.5,
    5,
    10,
)

# edge
REQUESTS: Final = Counter(
    "tailrace_requests", "Requests to generate, by what became of them at the gateway", ["outcome"]
)
ERRORS: Final = Counter("tailrace_errors", "Errors told to clients", ["code", "status"])
CREDENTIAL_REFUSALS: Final = Counter(
    "tailrace_credential_refusals", "Credentials and tickets refused", ["reason"]
)
OPEN_SOCKETS: Final = Gauge("tailrace_open_sockets", "WebSockets open now", ["kind"])
OPEN_STREAMS: Final = Gauge("tailrace_open_streams", "SSE streams open now")
SOCKET_CLOSES: Final = Counter(
    "tailrace_socket_closes", "WebSockets closed, by close code or `client`", ["code"]
)
OUTBOX_CLOSES: Final = Counter(
    "tailrace_outbox_closes", "Connections given up by their outbox", ["verdict"]
)
RUNNING_RESPONSES: Final = Gauge(
    "tailrace_running_responses", "Responses this process has in flight"
)

# latency: what a user feels, and where it went
FIRST_TOKEN_SECONDS: Final = Histogram(
    "tailrace_first_token_seconds",
    "Request read to its first token taken for delivery",
    ["pool"],
    buckets=_FAST,
)
INTER_TOKEN_SECONDS: Final = Histogram(
    "tailrace_inter_token_seconds",
    "Gap between tokens of one response as taken for delivery",
    ["pool"],
    buckets=_SHORT,
)
STAGE_SECONDS: Final = Histogram(
    "tailrace_stage_seconds",
    "Time in one stage: ingress, queue, tokenise, prefill, decode, append, push, egress",
    ["stage"],
    buckets=_FAST,
)
SUBMIT_SECONDS: Final = Histogram(
    "tailrace_submit_seconds", "Request read to request acknowledged by the log", buckets=_FAST
)
REPLAY_SECONDS: Final = Histogram(
    "tailrace_replay_seconds", "Reading one response's history out of the log", buckets=_FAST
)
REPLAYED_RECORDS: Final = Counter("tailrace_replayed_records", "Records read for replays")

# the log
FRAMES: Final = Counter("tailrace_frames_appended", "Token frames appended and acknowledged")
TOKENS: Final = Counter(
    "tailrace_tokens", "Tokens: prompt, cached (part of prompt), output", ["kind"]
)
FLUSHES: Final = Counter(
    "tailrace_flushes",
    "Times token frames were gathered and appended together: a round trip to the broker each",
)
FRAME_TOKENS: Final = Histogram(
    "tailrace_frame_tokens", "Tokens in one frame", buckets=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
)
VOID_RECORDS: Final = Counter(
    "tailrace_void_records",
    "Records of the token log that the fold left without effect",
    ["reason"],
)
CLAIMS: Final = Counter(
    "tailrace_claims", "Claims written by this worker: first, takeover, self, closing", ["kind"]
)
TAKEOVERS: Final = Counter(
    "tailrace_takeovers",
    "Responses taken over, by whether tokens were already accepted",
    ["tokens"],
)
RESPONSES_ENDED: Final = Counter(
    "tailrace_responses_ended", "Terminals written by this worker", ["status"]
)
DEAD_LETTERS: Final = Counter("tailrace_dead_letters", "Requests given up", ["reason"])
PRODUCERS_REPLACED: Final = Counter(
    "tailrace_producers_replaced", "Kafka producers thrown away after an error", ["reason"]
)
KAFKA_LAG: Final = Gauge(
    "tailrace_kafka_lag",
    "Records this process has still to read, by its last fetch",
    ["topic", "partition"],
)
KAFKA_AWAY: Final = Gauge("tailrace_kafka_away", "1 while the Kafka client cannot reach the broker")
REDIS_FAILURES: Final = Counter(
    "tailrace_redis_failures", "Calls that Redis did not answer in time"
)

# engine and placement
ENGINE_RUNNING: Final = Gauge("tailrace_engine_running", "Responses the engine is generating")
ENGINE_WAITING: Final = Gauge(
    "tailrace_engine_waiting", "Responses taken by this worker that the engine has not started"
)
ENGINE_CAPACITY: Final = Gauge(
    "tailrace_engine_capacity", "Responses the engine generates in parallel at most"
)
ENGINE_TOKENS_PER_SECOND: Final = Gauge(
    "tailrace_engine_tokens_per_second", "Output tokens per second over the last seconds"
)
ENGINE_READY: Final = Gauge("tailrace_engine_ready", "1 when the engine takes requests")
PREFIX_LOOKUPS: Final = Counter(
    "tailrace_prefix_lookups",
    "Placement by prompt prefix: hit, miss, overridden by load",
    ["outcome"],
)
SESSION_LOOKUPS: Final = Counter(
    "tailrace_session_lookups",
    "Conversation sessions: hit, rebuilt from the log, lost",
    ["outcome"],
)


@functools.cache  # pools are few, and this is asked for at every event
def gaps_of(pool: str) -> Histogram:
    return INTER_TOKEN_SECONDS.labels(pool=pool)


def exposed() -> tuple[bytes, str]:
    """All metrics as a scraper takes them, and the content type."""
    return prometheus_client.generate_latest(), prometheus_client.CONTENT_TYPE_LATEST


# ---- spans
# -----------------------------------------------------------------------------------------

Headers = Sequence[tuple[str, bytes]]


class _HeaderSetter(Setter[list[tuple[str, bytes]]]):
    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return [value.decode("ascii", "replace") for name, value in carrier if name == key] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


def trace_headers() -> list[tuple[str, bytes]]:
    """Kafka headers that carry the current span's context (W3C `traceparent`); empty without
    one."""
    headers: list[tuple[str, bytes]] = []
    if context.get_current():
        propagate.inject(headers, setter=_SETTER)
    return headers


def trace_context(headers: Headers) -> Context:
    """The context a record was written in. Unreadable headers give an empty one."""
    return propagate.extract(headers, getter=_GETTER) if headers else Context()


def span(
    name: str, parent: Context | None = None, **attributes: str | int | float | bool
) -> contextlib.AbstractContextManager[trace.Span]:
    """Attributes under the rules of lines: no content. An exception is recorded by its class alone,
    because its message may quote content.

    Where nobody collects spans none is made, and the parent's context is handed on.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _span(name, parent, attributes)
    return _handed_on(parent) if parent else _NO_SPAN


_NO_SPAN: Final = contextlib.nullcontext(trace.INVALID_SPAN)


@contextlib.contextmanager
def _handed_on(parent: Context) -> Iterator[trace.Span]:
    token = context.attach(parent)
    try:
        yield trace.get_current_span()
    finally:
        context.detach(token)


@contextlib.contextmanager
def _span(
    name: str, parent: Context | None, attributes: Mapping[str, str | int | float | bool]
) -> Iterator[trace.Span]:
    tracer = trace.get_tracer("tailrace")
    shown = {f"tailrace.{key}": guarded(key, value) for key, value in attributes.items()}
    with tracer.start_as_current_span(
        name, parent, attributes=shown, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def instrument(app: Any) -> None:
    """Spans for a FastAPI application, when spans are exported at all."""
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    if exporting():
        # A span per message would drown the request's own.
        FastAPIInstrumentor.instrument_app(
            app, excluded_urls="health,ready,metrics", exclude_spans=["receive", "send"]
        )


def exporting() -> bool:
    """Whether spans are collected; decided in `setup`."""
    from opentelemetry.sdk.trace import TracerProvider

    return isinstance(trace.get_tracer_provider(), TracerProvider)


def _export_spans(role: str, name: str) -> None:
    # Imported where they are used: without an endpoint a process saves a third of a second of
    # imports.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"tailrace-{role}", "service.instance.id": name})
    )
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter())
    )  # reads OTEL_EXPORTER_OTLP_* itself
    trace.set_tracer_provider(provider)


# ---- setup
# -----------------------------------------------------------------------------------------

# Libraries that tell more than anybody asked for at INFO, urls and addresses of users among it.
_QUIET_LOGGERS: Final = (
    "uvicorn.access",
    "uvicorn.error",
    "httpx",
    "httpcore",
    "opentelemetry",
    "asyncio",
)


def setup(role: str, name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Lines to stderr for the whole process, and spans to OTEL_EXPORTER_OTLP_ENDPOINT when that is
    set. May be called again."""
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
    logging.logThreads = logging.logMultiprocessing = (
        False  # a record asks for them one by one, and no line shows them; vLLM's show the process
    )
    for quiet in _QUIET_LOGGERS:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    kafka = logging.getLogger("aiokafka")
    kafka.handlers = [KafkaHandler()]
    kafka.setLevel(logging.WARNING)
    kafka.propagate = False
    if environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") and not exporting():
        _export_spans(role, name)
