"""Traces: a span per request and one per stage within it, sent to an OTLP collector.

OpenTelemetry is imported only if a collector is configured. Of a failure only its type is
recorded, because a message may quote a prompt. Requests to upstreams carry the trace in
`traceparent`: the stage's span as the parent, or without a collector what the caller sent.

Guided steps are described by OpenTelemetry's GenAI conventions, with an event for each Q. These
are set on the span of the request, which is the operation that a candidate's evaluation belongs
to: the span of the draw has ended before there is a Q. Texts are never recorded.
See https://github.com/open-telemetry/semantic-conventions-genai.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from qguide.qnet.decision.decision import StepUsage
from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import install
from qguide.qnet.types import Sampling
from qguide.qnet.work import in_trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor


Attributes = dict[str, str | int | float]
"""Attributes of a span or an event, by name."""

Describe = Callable[[str, Mapping[str, str | int]], None]
"""Sets the name and attributes of a request's span, once they are known."""
EVALUATION: Final = "gen_ai.evaluation.result"
_Q_VALUE: Final = "q_value"
"""Name of the evaluation."""


class Tracing(Protocol):
    """Destination of spans.

    Attributes:
        records: False if spans go nowhere, so that nothing need be described.
    """

    records: bool

    def request(self, headers: Mapping[str, str]) -> AbstractContextManager[Describe]:
        """Open the span of a request, as part of the caller's trace if `headers` name one."""
        ...

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Open the span of a stage of the current request."""
        ...

    def annotate(self, attributes: Attributes) -> None:
        """Set attributes of the current span: within a stage the stage's, else the request's."""
        ...

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event to the current span."""
        ...

    def close(self) -> None:
        """Send the remaining spans."""
        ...


class NoTracing:
    """Tracing that is switched off; the caller's trace still reaches upstreams."""

    records = False

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> Iterator[Describe]:
        """Pass the trace on that `headers` name."""
        with in_trace(headers):
            yield lambda name, attributes: None

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def annotate(self, attributes: Attributes) -> None:
        """Do nothing."""

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class OtelTracing:
    """Tracing through an OpenTelemetry span processor."""

    records = True

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
        """Open the span of a request, as part of the caller's trace if `headers` name one."""
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(headers)
        with self._tracer.start_as_current_span(
            "request", parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:

            def describe(name: str, attributes: Mapping[str, str | int]) -> None:
                span.update_name(name)
                span.set_attributes(attributes)

            yield describe

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Open the span of a stage of the current request."""
        with self._tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            try:
                with in_trace(self._injected()):
                    yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def annotate(self, attributes: Attributes) -> None:
        """Set attributes of the current span."""
        from opentelemetry.trace import get_current_span

        get_current_span().set_attributes(attributes)

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event to the current span."""
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(name, attributes)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def _injected(self) -> dict[str, str]:
        """The current span as headers."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers)
        return headers


def build_tracing(endpoint: str | None) -> Tracing:
    """Build the tracing that sends spans to an OTLP/HTTP endpoint; None switches it off."""
    if endpoint is None:
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"QGUIDE_OTLP_ENDPOINT is set but OpenTelemetry is not installed; {install('otel')}, or unset the variable"
        ) from error
    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
    return OtelTracing(BatchSpanProcessor(exporter))


def record_draw(
    tracing: Tracing, *, model: str, num_candidates: int, sampling: Sampling, episode_id: str | None
) -> None:
    """Record what a step asks of its policy, before it draws."""
    if not tracing.records:
        return
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "qguide",
        "gen_ai.request.model": model,
        "gen_ai.request.choice.count": num_candidates,
    }
    given = {
        "gen_ai.conversation.id": episode_id,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_tokens,
    }
    tracing.annotate(attributes | {k: v for k, v in given.items() if v is not None})


def record_usage(tracing: Tracing, usage: StepUsage) -> None:
    """Record the tokens that a step's policy read and generated."""
    if not tracing.records:
        return
    tracing.annotate(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_prompt_tokens,
            "qguide.usage.scored_tokens": usage.scored_tokens,
            "qguide.usage.cached_tokens": usage.cached_tokens,
        }
    )


def record_q_values(
    tracing: Tracing, q_values: Sequence[float], *, chosen: int, q_model: str, episode_id: str | None = None
) -> None:
    """Record an evaluation for each candidate, in their order.

    Args:
        episode_id: of a step that draws nothing.
    """
    if not tracing.records:
        return
    if episode_id is not None:
        tracing.annotate({"gen_ai.conversation.id": episode_id})
    for index, q_value in enumerate(q_values):
        tracing.add_event(
            EVALUATION,
            {
                "gen_ai.evaluation.name": _Q_VALUE,
                "gen_ai.evaluation.score.value": q_value,
                "gen_ai.evaluation.score.label": "chosen" if index == chosen else "not_chosen",
                "qguide.candidate.index": index,
                "qguide.q_model": q_model,
            },
        )
