"""Runs a command and kills its process group when the parent process dies.

    python process_guard.py COMMAND …    in its own session, with a pipe as stdin

Nothing is ever written to the pipe. It closes when the parent ends for any reason: a parent that is killed cannot clean
up, and without this its children would keep their memory and their GPUs.
"""

import os
import signal
import subprocess
import sys
from threading import Thread


def guard(command: list[str]) -> int:
    """Run the command to its end and return its exit status."""
    # Unlike SIG_IGN, a handler is not inherited, so the command itself still ends on a signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    Thread(target=_end_with_stdin, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(guard(sys.argv[1:]))
