"""The operator's redaction function, run in separate processes.

A function that hangs in a thread cannot be stopped, and one that hangs in a regular expression blocks every other
thread, because it holds the GIL. So it runs in separate processes: one that exceeds the time limit is killed, and
`sys.exit` in it does not end the server.
"""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from qguide.qnet.errors import ConfigError
from qguide.server.episodes import redaction_worker

_MOST_PROCESSES: Final = 4
"""Number of episodes redacted at the same time. Texts on which the function hangs delay others only while they occupy
all processes."""
_MOST_BYTES: Final = 1024**3  # of an answer, in one line
_START_S: Final = 60.0  # time limit for importing the operator's module, which may load a model
_log = structlog.get_logger(__name__)


class RedactionError(Exception):
    """The texts could not be redacted, so nothing may be written; the message is the reason."""


class RedactionProcesses:
    """Pool of processes that run the operator's redaction function."""

    def __init__(self, name: str, *, timeout_s: float) -> None:
        self._name = name  # `module:function`, checked by `require_redaction` when the server starts
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(_MOST_PROCESSES)
        self._idle: list[Process] = []
        self._running: set[Process] = set()

    async def redact(self, texts: Sequence[str]) -> list[str]:
        """Redact texts, keeping their order."""
        async with self._free:
            process = self._idle.pop() if self._idle else await self._start()
            answered = False
            try:
                async with asyncio.timeout(self._timeout_s):
                    assert process.stdin is not None
                    process.stdin.write(json.dumps(list(texts)).encode() + b"\n")
                    await process.stdin.drain()
                    answer = await _read(process)
                answered = True
            except TimeoutError:
                _log.error("redaction_timed_out", timeout_s=self._timeout_s)
                raise RedactionError(
                    f"the redaction hook took longer than {self._timeout_s:g} s (QGUIDE_EPISODES_REDACT_TIMEOUT_S)"
                ) from None
            except (OSError, ValueError):
                answer = {"error": "its process exited"}
            finally:
                if answered:
                    self._idle.append(process)
                else:
                    await self._kill(process)
        if "error" in answer:
            _log.error("redaction_failed", reason=answer["error"])
            raise RedactionError("the redaction hook failed")
        redacted: list[str] = answer["texts"]
        return redacted

    async def close(self) -> None:
        """Kill all processes."""
        for process in list(self._running):
            await self._kill(process)
        self._idle.clear()

    async def _start(self) -> Process:
        # Not a `ManagedProcess`, whose pipes block: a redaction is timed out by the event loop.
        process = await asyncio.create_subprocess_exec(
            *_command(self._name, self._timeout_s),
            stdin=PIPE,
            stdout=PIPE,
            limit=_MOST_BYTES,
            env=_environment(),
            start_new_session=True,  # Ctrl-C must reach only the server, which kills this process
        )
        self._running.add(process)
        try:
            async with asyncio.timeout(_START_S):
                answer = await _read(process)
        except (TimeoutError, OSError, ValueError):
            answer = {"error": f"it was not imported within {_START_S:g} s"}
        except BaseException:
            await self._kill(process)
            raise
        if "error" in answer:
            await self._kill(process)
            _log.error("redaction_not_started", reason=answer["error"])
            raise RedactionError("the redaction hook could not be imported")
        return process

    async def _kill(self, process: Process) -> None:
        self._running.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def require_redaction(name: str, *, timeout_s: float) -> None:
    """Check in a separate process that the redaction function can be imported."""
    try:
        done = subprocess.run(
            _command(name, timeout_s),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=_environment(),
            timeout=_START_S,
            check=False,
        )
        answer = json.loads(done.stdout)
        reason = str(answer.get("error", ""))
    except subprocess.TimeoutExpired:
        reason = f"its import took longer than {_START_S:g} s"
    except ValueError:
        reason = "its process exited"
    if reason:
        raise ConfigError(
            f"QGUIDE_EPISODES_REDACT is {name!r}, which cannot be imported ({reason}); name a function as "
            "module:function"
        )


async def _read(process: Process) -> dict[str, Any]:
    """Its next line; the end of its output is no JSON."""
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(await process.stdout.readline())
    return answer


def _command(name: str, timeout_s: float) -> list[str]:
    # With -P the working folder is on the path only if it is on this process's path.
    return [sys.executable, "-P", "-m", redaction_worker.__name__, name, str(timeout_s)]


def _environment() -> dict[str, str]:
    """This process's environment and import path, so that the same function is found."""
    paths = (path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
