"""The process of one worker (`python -m qguide.training.workers.process_main FD`)."""

import contextlib
import sys
from multiprocessing.connection import Connection

from qguide.qnet.errors import QGuideError
from qguide.training.workers.base import Reply, Request, pickled_reply_to
from qguide.training.workers.host import EnvironmentHost, EnvironmentSpec


def serve(connection: Connection) -> None:
    """Answer requests until the job closes the pipe or is gone."""
    spec: EnvironmentSpec = connection.recv()
    try:
        host = EnvironmentHost(spec)
    except QGuideError as error:
        refused = Reply(error=(type(error).__name__, str(error)))
        while True:
            connection.recv()
            connection.send(refused)
    try:
        while True:
            request: Request = connection.recv()
            connection.send_bytes(pickled_reply_to(host, request))
    finally:
        host.close_all()


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as pipe, contextlib.suppress(EOFError, OSError):
        serve(pipe)
