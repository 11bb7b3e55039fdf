"""Structured logs: JSON lines on stderr, without any text that users wrote.

The message of any exception may quote a prompt, so a failure is logged as the types and places of the exception and its
causes. Only at DEBUG are the messages logged too. Log records of other libraries (uvicorn, asyncio, redis) are
formatted in the same way.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog
from stamina.instrumentation import RetryDetails, set_on_retry_hooks
from structlog.typing import EventDict, ExcInfo, Processor

_MAX_CAUSES: Final = 8
_MAX_FRAMES: Final = 50


def configure_logging(level: str) -> None:
    """Send structlog, `logging` and uncaught exceptions of threads to stderr as JSON lines."""
    number = logging.getLevelNamesMapping()[level]
    ends: list[Processor] = [
        structlog.processors.TimeStamper(fmt="iso"),
        Failures(messages=number <= logging.DEBUG),
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, *ends],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                _without_arguments,
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ends],
            pass_foreign_args=True,
        )
    )
    # At INFO libraries log details of requests, each in its own way.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    threading.excepthook = lambda died: structlog.get_logger(__name__).error(
        "thread_died", thread=died.thread.name if died.thread else None, exc_info=died.exc_value
    )
    set_on_retry_hooks([_log_retry])


class Failures:
    """structlog processor that turns `exc_info` into `exception`, a list of types and places."""

    def __init__(self, *, messages: bool) -> None:
        self._messages = messages

    def __call__(self, logger: object, method: str, event: EventDict) -> EventDict:
        """Replace `exc_info`, if there is one."""
        error = _exception_of(event.pop("exc_info", None))
        if error is not None:
            event["exception"] = [self._shown(one) for one in _causes(error)]
        return event

    def _shown(self, error: BaseException) -> dict[str, object]:
        shown: dict[str, object] = {
            "type": type(error).__name__,
            "places": [
                f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__, limit=-_MAX_FRAMES)
            ],
        }
        return shown | {"message": str(error)} if self._messages else shown


def _without_arguments(logger: object, method: str, event: EventDict) -> EventDict:
    """The format string of a library's record; of its arguments, which may hold a user's text, numbers and types."""
    event["event"] = str(event["_record"].msg).partition("\n")[0]
    filled_in = event.pop("positional_args", ())
    if isinstance(filled_in, tuple) and filled_in:
        event["arguments"] = [one if isinstance(one, int | float) else type(one).__name__ for one in filled_in]
    return event


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and its causes, including the members of exception groups."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MAX_CAUSES:
        error = waiting.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            waiting.append(cause)


def _exception_of(given: ExcInfo | tuple[None, None, None] | BaseException | bool | None) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple):
        return given[1]
    return sys.exc_info()[1] if given else None


def _log_retry(details: RetryDetails) -> None:
    """Log a retry, in place of stamina's own line, which has the message of the exception."""
    structlog.get_logger(__name__).warning(
        "retry_scheduled",
        reason=type(details.caused_by).__name__,
        retry=details.retry_num,
        wait_s=round(details.wait_for, 2),
    )
