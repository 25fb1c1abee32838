"""OpenTelemetry spans, and their context through Kafka headers."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter

from tailrace.telemetry.lines import guard

Headers = Sequence[tuple[str, bytes | None]]


class _HeaderSetter(Setter[list[tuple[str, bytes]]]):
    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return [v.decode("ascii", "replace") for name, v in carrier if name == key and v] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


# Patterns of URLs. What watches a process says nothing; a link's address is a credential.
UNTRACED: Final = ("health", "ready", "metrics", "/v1/shared/", "/s/")
_SETTER: Final = _HeaderSetter()
_GETTER: Final = _HeaderGetter()


def trace_headers() -> list[tuple[str, bytes]]:
    """Kafka headers that carry the current span's context (W3C `traceparent`); empty without a
    span."""
    headers: list[tuple[str, bytes]] = []
    if context.get_current():
        propagate.inject(headers, setter=_SETTER)
    return headers


def trace_context(headers: Headers) -> Context:
    """The context in which a record was written. Unreadable headers give an empty one."""
    return propagate.extract(headers, getter=_GETTER) if headers else Context()


def span(
    name: str, parent: Context | None = None, **attributes: str | int | float | bool
) -> contextlib.AbstractContextManager[trace.Span]:
    """A span around a `with` block. Without an exporter no span is made, and the parent's context
    is passed on.

    Attributes follow the rules of lines: no content. An exception is recorded by its class alone,
    because its message may quote content.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _span(name, parent, attributes)
    return _passed_on(parent) if parent else _NO_SPAN


_NO_SPAN: Final = contextlib.nullcontext(trace.INVALID_SPAN)


@contextlib.contextmanager
def _passed_on(parent: Context) -> Iterator[trace.Span]:
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
    attributes_ = {f"tailrace.{key}": guard(key, value) for key, value in attributes.items()}
    with tracer.start_as_current_span(
        name, parent, attributes=attributes_, record_exception=False, set_status_on_exception=False
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
        # Without a span per message received or sent: they would hide the request's own.
        FastAPIInstrumentor.instrument_app(
            app, excluded_urls=",".join(UNTRACED), exclude_spans=["receive", "send"]
        )


def exporting() -> bool:
    """Whether spans are exported; `setup` decides."""
    from opentelemetry.sdk.trace import TracerProvider

    return isinstance(trace.get_tracer_provider(), TracerProvider)


def export_spans(role: str, name: str) -> None:
    """Send spans to OTEL_EXPORTER_OTLP_ENDPOINT from now on."""
    # Imported here: a process without an endpoint saves a third of a second of imports.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from tailrace.telemetry.span_exporter import SpanFilter

    provider = TracerProvider(
        resource=Resource.create({"service.name": f"tailrace-{role}", "service.instance.id": name})
    )
    # OTLPSpanExporter reads OTEL_EXPORTER_OTLP_*.
    provider.add_span_processor(BatchSpanProcessor(SpanFilter(OTLPSpanExporter())))
    trace.set_tracer_provider(provider)
