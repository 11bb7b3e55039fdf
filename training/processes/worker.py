"""Workers as processes of this machine (`python -m qguide.training.processes.worker FD`)."""

import contextlib
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Final

from qguide.qnet.errors import QGuideError
from qguide.training.processes.messages import (
    READY,
    START_S,
    MakeHost,
    Reply,
    Request,
    WorkerClosedError,
    WorkerLostError,
    load_reply,
    pickled_reply_to,
)

_END_S: Final = 10.0
_DEATH_S: Final = 2.0
"""Longest time between the end of a worker's pipe and its own: a traceback is written."""


class ProcessWorker:
    """A process and the pipe to it. It ends when the pipe does, so it cannot outlive the job."""

    def __init__(self, make_host: MakeHost, *, timeout_s: float) -> None:
        """Start the process.

        Only what this job sends is unpickled on either side: the pipe has no name and no address.
        """
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._pipe, theirs = Pipe()
        _limit_waits(self._pipe, timeout_s)
        self._connection: Connection | None = self._pipe
        self._ready: Reply | None = None
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is the job's to handle
            )
        with contextlib.suppress(OSError):  # it is gone already; the first request will say so
            self._pipe.send(make_host)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs, and may be asked."""
        return self._connection is not None and self._process.poll() is None

    def ask(self, request: Request) -> Reply:
        """See `EnvironmentWorker`."""
        with self._lock:
            if self._connection is None:
                raise WorkerClosedError("the worker was closed")
            try:
                if self._ready is None:
                    self._ready = self._exchange(self._connection, READY, START_S)
                if self._ready.error is not None:
                    return self._ready
                return self._exchange(self._connection, request, self._timeout_s)
            except (TimeoutError, BlockingIOError):
                why = f"it did not answer within {self._timeout_s:g} s"
            except (EOFError, OSError):
                why = "it died"
                with contextlib.suppress(subprocess.TimeoutExpired):  # its own exit status is told
                    self._process.wait(_DEATH_S)
            self._end()
            raise WorkerLostError(
                f"a worker process was lost during {request.method}: {why} (exit status {self._process.returncode})"
            )

    def _exchange(self, connection: Connection, request: Request, timeout_s: float) -> Reply:
        connection.send(request)
        if not connection.poll(timeout_s):
            raise TimeoutError
        return load_reply(connection.recv_bytes(), request.method)

    def close(self) -> None:
        """End the process: by the end of its pipe, or by force."""
        if self._connection is not None:
            self._pipe.close()
            self._connection = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._end()

    def _end(self) -> None:
        if self._connection is not None:
            self._pipe.close()
            self._connection = None
        self._process.kill()
        self._process.wait()


def _limit_waits(pipe: Connection, timeout_s: float) -> None:
    """Limit how long a message of any size waits for a worker that has stopped amid it."""
    whole_s, rest_s = divmod(timeout_s, 1)
    limit = struct.pack("ll", int(whole_s), int(rest_s * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, direction, limit)


def serve(connection: Connection) -> None:
    """Answer requests until the job closes the pipe or is gone."""
    make_host: MakeHost = connection.recv()
    try:
        host = make_host()
    except QGuideError as error:
        refused = Reply(error=(type(error).__name__, str(error)))
        while True:
            connection.recv()
            connection.send_bytes(pickle.dumps(refused))
    try:
        while True:
            request: Request = connection.recv()
            connection.send_bytes(pickled_reply_to(host, request))
    finally:
        host.close_all()


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as pipe, contextlib.suppress(EOFError, OSError):
        serve(pipe)
