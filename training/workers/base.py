"""Workers as the job sees them: requests and replies, and what is raised when a worker is gone."""

import traceback
from dataclasses import dataclass
from typing import Any, Protocol

from qnet.errors import ConfigError, EnvironmentFailureError, QGuideError


class WorkerLostError(EnvironmentFailureError):
    """A worker died or did not answer, and its episode could not be taken up elsewhere."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call of one method of what a worker holds.

    Attributes:
        closed: episodes that nobody will ask for again.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    closed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request. Errors travel as text, because not every one can be pickled.

    Attributes:
        error: class and message of an error; None if there was none.
        bug: the error was none of ours; its message is the traceback.
    """

    value: Any = None
    error: tuple[str, str] | None = None
    bug: bool = False

    def result(self) -> Any:
        """The value.

        Raises:
            QGuideError: the worker raised one.
            RuntimeError: the worker has a bug.
        """
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


class Worker(Protocol):
    """One process that holds environments and answers one request at a time."""

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for the reply; safe to call from many threads.

        Raises:
            WorkerLostError: the worker is gone, or did not answer in time and was killed.
        """
        ...

    def close(self) -> None:
        """End the process; safe to call twice."""
        ...


class Executor(Protocol):
    """A place where workers run."""

    def start(self) -> Worker:
        """Start one more worker; returns before it is ready."""
        ...

    def close(self) -> None:
        """Give back what all workers share; their own `close` comes first."""
        ...
