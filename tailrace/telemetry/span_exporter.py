"""An exporter of spans that lets through only what is known to hold no content.

What instrumentations add is theirs to change: addresses with their query, the message of an
exception. So what may pass is on a list, and the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.util.types import Attributes

OWN: Final = "tailrace"  # the scope of our spans and the beginning of their attributes
ALLOWED: Final = frozenset(
    {
        *("http.route", "http.method", "http.request.method"),
        *("http.status_code", "http.response.status_code"),
        *("http.scheme", "url.scheme", "http.flavor", "network.protocol.version"),
        *("error.type", "exception.type"),
    }
)


class SpanFilter(SpanExporter):
    """Passes spans on to `exporter` with the attributes of ALLOWED and our own."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans without what is not allowed."""
        return self._exporter.export([_without_content(span) for span in spans])

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what waits. Returns whether that was possible in this time."""
        return self._exporter.force_flush(timeout_millis)


def _without_content(span: ReadableSpan) -> ReadableSpan:
    scope = span.instrumentation_scope
    is_ours = scope is not None and scope.name == OWN
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        _allowed(span.attributes),
        [Event(each.name, _allowed(each.attributes), each.timestamp) for each in span.events],
        span.links,
        span.kind,
        # Others describe a failure by the message of its exception.
        status=span.status if is_ours else trace.Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )


def _allowed(attributes: Attributes) -> Attributes:
    return {
        name: value
        for name, value in (attributes or {}).items()
        if name in ALLOWED or name.startswith(f"{OWN}.")
    }
