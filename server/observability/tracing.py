"""Traces: a span per request and one per stage within it, for any collector that speaks OTLP.

Nothing of OpenTelemetry is imported where no collector is configured. What is known of a failure
is its type: a message may quote a prompt.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from qnet.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

Describe = Callable[[str, Mapping[str, str | int]], None]
"""Gives a request's span its name and attributes, once they are known."""


class Tracing(Protocol):
    """Where spans go."""

    def request(self, headers: Mapping[str, str]) -> AbstractContextManager[Describe]:
        """The span of a request, a part of the caller's trace if `headers` name one."""
        ...

    def stage(self, name: str) -> AbstractContextManager[None]:
        """The span of a stage of the request that is served."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


class NoTracing:
    """Spans go nowhere."""

    def request(self, headers: Mapping[str, str]) -> AbstractContextManager[Describe]:
        """Nothing."""
        return nullcontext(lambda name, attributes: None)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def close(self) -> None:
        """Nothing."""


class OtelTracing:
    """Spans go through a processor of OpenTelemetry's."""

    def __init__(self, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": "qguide"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("qguide")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> Iterator[Describe]:
        """The span of a request, a part of the caller's trace if `headers` name one."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(headers)
        with self._tracer.start_as_current_span(
            "request",
            parent,
            SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            def describe(name: str, attributes: Mapping[str, str | int]) -> None:
                span.update_name(name)
                span.set_attributes(attributes)

            yield describe

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The span of a stage of the request that is served."""
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def build_tracing(endpoint: str | None) -> Tracing:
    """Spans to a collector's OTLP address over HTTP; None: no spans.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """
    if endpoint is None:
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "QGUIDE_OTLP_ENDPOINT is set and OpenTelemetry is not installed; install "
            "`qguide[otel]` or leave it empty"
        ) from error
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    return OtelTracing(BatchSpanProcessor(exporter))
