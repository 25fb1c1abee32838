"""JSON lines on stderr: `log(Action.X, field=value)`.

Prompts, outputs, credentials and tickets never appear in a line. Callers do not pass
them; `guard` and the formatter are the second defence after that rule.
"""

import contextlib
import datetime
import enum
import json
import logging
import math
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from opentelemetry import trace


class Action(enum.StrEnum):
    """The action of a line. Operators filter by these words; the set is closed."""

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
    CREDENTIALS_REVOKED = "credentials_revoked"  # and what was open for them ended

    RESPONSE_ACCEPTED = "response_accepted"
    RESPONSE_CLAIMED = "response_claimed"
    RESPONSE_TAKEN_OVER = "response_taken_over"
    RESPONSE_LOST = "response_lost"  # another worker has claimed it
    RESPONSE_WITHDRAWN = "response_withdrawn"  # its client was answered that the outcome is unknown
    RESPONSE_REROUTED = "response_rerouted"  # another pool may answer it
    RESPONSE_HEDGED = "response_hedged"  # its first token is late: a second worker starts, or did
    RESPONSE_ENDED = "response_ended"
    DEAD_LETTER = "dead_letter"

    ENGINE_LOADING = "engine_loading"
    ENGINE_TRIED = "engine_tried"  # which fields and formats it takes
    ENGINE_READY = "engine_ready"
    ENGINE_FAILED = "engine_failed"
    ENGINE_FALLBACK = "engine_fallback"  # to the slower public API of its library

    REVISION_RETURNED = "revision_returned"  # it is worse than the others and gets no new requests
    REVISION_TRIED = "revision_tried"  # one that was worse gets requests again
    BREAKER_CHANGED = "breaker_changed"  # of a pool: it gets requests, none, or a few
    COUNTING_LEFT_TO_WORKERS = "counting_left_to_workers"  # the gateway's tokenizer is another

    POOLS_CHANGED = "pools_changed"  # the pools' file says something else, and it is in force
    POOLS_REFUSED = "pools_refused"  # it cannot be used; the former pools stay
    RESTART_NEEDED = "restart_needed"  # for what changed to come into force

    PARTITIONS_ASSIGNED = "partitions_assigned"
    PARTITIONS_REVOKED = "partitions_revoked"
    PRODUCER_REPLACED = "producer_replaced"
    CONSUMER_REPLACED = "consumer_replaced"
    READER_BLIND = "reader_blind"  # it hears nothing of partitions that it reads
    READER_HEARS = "reader_hears"  # it hears of them again
    OFFSETS_MOVED = "offsets_moved"  # of the pool's group, by somebody else than a worker
    INDEXING = "indexing"  # older conversations are being made searchable
    RECORD_UNREADABLE = "record_unreadable"
    SET_ASIDE = "set_aside"  # a record that a database does not take
    LOG_ROLLED_BACK = "log_rolled_back"  # a stored position no longer belongs to the log
    FORGED_RECORD = "forged_record"  # without a good authentication tag
    KAFKA_AWAY = "kafka_away"
    KAFKA_BACK = "kafka_back"
    KAFKA_FALLBACK = "kafka_fallback"  # to the slower public API of its library
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
    Action.COUNTING_LEFT_TO_WORKERS: logging.WARNING,
    Action.POOLS_REFUSED: logging.WARNING,
    Action.RESTART_NEEDED: logging.WARNING,
    Action.PRODUCER_REPLACED: logging.WARNING,
    Action.CONSUMER_REPLACED: logging.WARNING,
    Action.READER_BLIND: logging.WARNING,
    Action.OFFSETS_MOVED: logging.WARNING,
    Action.RECORD_UNREADABLE: logging.WARNING,
    Action.KAFKA_AWAY: logging.WARNING,
    Action.KAFKA_FALLBACK: logging.WARNING,
    Action.SET_ASIDE: logging.ERROR,
    Action.LOG_ROLLED_BACK: logging.ERROR,
    Action.FORGED_RECORD: logging.WARNING,
    Action.REDIS_AWAY: logging.WARNING,
}

_logger: Final = logging.getLogger("tailrace")
_encode: Final = msgspec.json.Encoder().encode


def log(action: Action, *, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Write one line. Fields are numbers, short texts and lists of them; of anything else only the
    type is shown."""
    level = _LEVELS.get(action, logging.INFO)
    if _logger.isEnabledFor(level):
        caught = (
            (type(exc_info), exc_info, exc_info.__traceback__) if exc_info is not None else None
        )
        # Not Logger.log: it walks the stack for a file name and a line number that no line shows,
        # which is half of what a line costs.
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

# A field with one of these names, alone or as the last word of a longer name, never shows a text.
# Numbers pass: `output_tokens=12` is what lines are for.
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


def guard(name: str, value: Any, depth: int = 0) -> Any:
    """`value` as it may appear in a line under the name `name`."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no other numbers
    if name.lower().rpartition("_")[2] in _CLOSED_FIELDS:
        return _REDACTED
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {
            redact(str(key)): guard(str(key), value[key], depth + 1)
            for key in list(value)[:_MAX_ITEMS]
        }
    if isinstance(value, list | tuple | set | frozenset) and depth < _MAX_DEPTH:
        return [guard("", each, depth + 1) for each in list(value)[:_MAX_ITEMS]]
    return f"<{type(value).__name__}>"  # its repr could hold anything


def redact(text: str) -> str:
    """`text` without credentials and tickets, at most MAX_TEXT characters."""
    text_ = _SECRET_TEXT.sub(_REDACTED, text[: MAX_TEXT * 20])
    return text_ if len(text_) <= MAX_TEXT else text_[:MAX_TEXT] + "…"


# The messages of these errors are words of the program or the system. Other errors (ValueError,
# KeyError, validation) often quote the wrong value, which may be a prompt.
_PLAIN_ERRORS: Final = (OSError, RuntimeError, ImportError, MemoryError)
_PLAIN_PACKAGES: Final = frozenset(
    {"gateway", "push", "worker", "tailrace", "aiokafka", "redis", "httpx"}
)


def describe(error: BaseException) -> str:
    """An error for a line: its class, and its message where that cannot quote content."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    plain = isinstance(error, _PLAIN_ERRORS) or kind.__module__.partition(".")[0] in _PLAIN_PACKAGES
    text = redact(str(error)) if plain else ""
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
    """Formats records as one JSON object per line.

    ASCII only: no control character reaches a terminal, and every text can be written.
    """

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
            # The first line only: asyncio writes the repr of a task and its exception below it.
            message = redact(record.getMessage().partition("\n")[0])
            line |= {"action": Action.NOTE.value, "logger": record.name, "message": message}
        else:
            line |= {
                "action": action,
                **{key: guard(key, value) for key, value in record.__dict__["fields"].items()},
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
        # Five times as slow, but it can write everything.
        return json.dumps(
            line, default=lambda value: f"<{type(value).__name__}>", separators=(",", ":")
        )
