"""What a process tells about itself: JSON lines on stderr, Prometheus metrics, OpenTelemetry spans.

    setup(role, name)            once, first in a process           process_setup
    log(Action.X, field=value)   a line; actions are a closed set   lines
    REQUESTS.labels(...).inc()   every metric is defined in         metrics
    span(...), trace_headers()   context through Kafka headers      traces

    health      health, readiness and metrics over HTTP
    gc_tuning   short pauses of the garbage collector

Callers use the names below through this package: `telemetry.log(...)`. Prompts, outputs,
credentials and tickets never appear in a line, a label or a span.
"""

from tailrace.telemetry.lines import (
    MAX_TEXT,
    Action,
    JsonFormatter,
    describe,
    log,
)
from tailrace.telemetry.metrics import (
    CLAIMS,
    CONSUMER_LAG,
    CREDENTIAL_REFUSALS,
    DEAD_LETTERS,
    ENGINE_CAPACITY,
    ENGINE_READY,
    ENGINE_RUNNING,
    ENGINE_TOKENS_PER_SECOND,
    ENGINE_WAITING,
    ERRORS,
    FIRST_TOKEN_SECONDS,
    FLUSHES,
    FRAME_TOKENS,
    FRAMES,
    IGNORED_RECORDS,
    INTER_TOKEN_SECONDS,
    KAFKA_AWAY,
    OPEN_SOCKETS,
    OPEN_STREAMS,
    OUTBOX_CLOSES,
    PREFIX_LOOKUPS,
    PRODUCERS_REPLACED,
    REDIS_FAILURES,
    REPLAY_SECONDS,
    REPLAYED_RECORDS,
    REQUESTS,
    RESPONSES_ENDED,
    RUNNING_RESPONSES,
    SESSION_LOOKUPS,
    SOCKET_CLOSES,
    STAGE_SECONDS,
    SUBMIT_SECONDS,
    TAKEOVERS,
    TOKENS,
    Stage,
    exposed,
    inter_token_seconds,
)
from tailrace.telemetry.process_setup import (
    setup,
)
from tailrace.telemetry.traces import (
    exporting,
    instrument,
    span,
    trace_context,
    trace_headers,
)

__all__ = [
    "CLAIMS",
    "CONSUMER_LAG",
    "CREDENTIAL_REFUSALS",
    "DEAD_LETTERS",
    "ENGINE_CAPACITY",
    "ENGINE_READY",
    "ENGINE_RUNNING",
    "ENGINE_TOKENS_PER_SECOND",
    "ENGINE_WAITING",
    "ERRORS",
    "FIRST_TOKEN_SECONDS",
    "FLUSHES",
    "FRAMES",
    "FRAME_TOKENS",
    "IGNORED_RECORDS",
    "INTER_TOKEN_SECONDS",
    "KAFKA_AWAY",
    "MAX_TEXT",
    "OPEN_SOCKETS",
    "OPEN_STREAMS",
    "OUTBOX_CLOSES",
    "PREFIX_LOOKUPS",
    "PRODUCERS_REPLACED",
    "REDIS_FAILURES",
    "REPLAYED_RECORDS",
    "REPLAY_SECONDS",
    "REQUESTS",
    "RESPONSES_ENDED",
    "RUNNING_RESPONSES",
    "SESSION_LOOKUPS",
    "SOCKET_CLOSES",
    "STAGE_SECONDS",
    "SUBMIT_SECONDS",
    "TAKEOVERS",
    "TOKENS",
    "Action",
    "JsonFormatter",
    "Stage",
    "describe",
    "exporting",
    "exposed",
    "instrument",
    "inter_token_seconds",
    "log",
    "setup",
    "span",
    "trace_context",
    "trace_headers",
]
