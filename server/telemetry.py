"""Metrics for Prometheus and logs for people; prompts are in neither."""

import logging
import sys

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Telemetry:
    """The server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "qguide_requests_total",
            "Requests by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.stage_seconds = Histogram(
            "qguide_stage_seconds",
            "Time per stage of a request, waiting included.",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.tokens = Counter(
            "qguide_tokens_total",
            "Tokens: completion (generated), scored (computed) and cached.",
            ["kind"],
            registry=self.registry,
        )
        self.candidates = Histogram(
            "qguide_distinct_candidates",
            "Different candidates per request.",
            buckets=(1, 2, 3, 4, 5, 8, 16, 32, 64),
            registry=self.registry,
        )

    def count_tokens(self, *, completion: int, scored: int, cached: int) -> None:
        """Add one request's tokens."""
        for kind, number in (("completion", completion), ("scored", scored), ("cached", cached)):
            self.tokens.labels(kind).inc(number)


def configure_logging(level: str) -> None:
    """JSON lines on stderr."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            # Local variables hold prompts; a traceback is logged without them.
            ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
