"""Workers as a job sees them: requests and replies, and what is raised when a worker is gone."""

import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from qguide.qnet.errors import ConfigError, EnvironmentFailureError, QGuideError


class WorkerLostError(EnvironmentFailureError):
    """A worker died or did not answer, and its episode could not be taken up elsewhere."""


class WorkerClosedError(WorkerLostError):
    """A worker was gone before it got the request, which therefore is not what it died of."""


class DeadlyRequestError(WorkerLostError):
    """One request cost several workers. Asked again, it would cost as many once more."""


START_S: Final = 1_200.0
"""Longest wait until a worker has its environment: a suite may be large, and a cluster busy."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call of one method of what a worker holds.

    Attributes:
        closed: episodes that nobody will ask for again.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    closed: tuple[int, ...] = ()


READY: Final = Request("ready")
"""The first request to each worker. The start is no part of another one's time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. Errors travel as text, because not every one can be pickled.

    Attributes:
        bug: the error was none of ours; its message is the traceback.
    """

    value: Any = None
    error: tuple[str, str] | None = None
    bug: bool = False

    def result(self) -> Any:
        """The value."""
        if self.error is None:
            return self.value
        name, message = self.error
        if self.bug:
            raise RuntimeError(f"{name} in a worker:\n{message}")
        raise (ConfigError if name == ConfigError.__name__ else EnvironmentFailureError)(message)


def reply_to(host: Any, request: Request) -> Reply:
    """Let a host do what is requested."""
    try:
        for number in request.closed:
            host.close(number)
        return Reply(getattr(host, request.method)(*request.arguments))
    except QGuideError as error:
        return Reply(error=(type(error).__name__, str(error)))
    except Exception as error:
        return Reply(error=(type(error).__name__, traceback.format_exc()), bug=True)


def pickled_reply_to(host: Any, request: Request) -> bytes:
    """Let a host do what is requested, and pickle the reply, or the error of one that cannot be."""
    reply = reply_to(host, request)
    try:
        return pickle.dumps(reply)
    except Exception as error:  # whatever the value's own methods raise
        told = (
            f"{request.method} returned a value of type {type(reply.value).__qualname__} that "
            f"cannot be pickled ({error}); environments in workers need values that can, or set "
            "workers.executor to 'inline'"
        )
        return pickle.dumps(Reply(error=(EnvironmentFailureError.__name__, told)))


def load_reply(pickled: bytes, method: str) -> Reply:
    """Unpickle a reply; one that cannot be becomes an error of its episode."""
    try:
        reply: Reply = pickle.loads(pickled)
    except Exception as error:  # whatever the value's own methods raise
        told = (
            f"{method} returned a value that cannot be unpickled ({type(error).__name__}: "
            f"{error}); environments in workers need values that can, or set workers.executor to "
            "'inline'"
        )
        return Reply(error=(EnvironmentFailureError.__name__, told))
    return reply


MakeHost = Callable[[], Any]
"""Makes what a worker holds; it is pickled. Requests name the host's methods, and it has `close` and `close_all`."""


class EnvironmentWorker(Protocol):
    """One process that holds environments and answers one request at a time."""

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply; safe to call from many threads."""
        ...

    def close(self) -> None:
        """End the process; safe to call twice."""
        ...
