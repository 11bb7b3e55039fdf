"""Runs a command, and ends it with all that it started when whoever started this is gone.

    python child_guard.py COMMAND …        in a session of its own, with a pipe as stdin

The pipe is never written to. It closes when the other end's process ends, however that happens; a
process that is killed cannot clean up, and what it started would keep its memory and its GPUs.
"""

import os
import signal
import subprocess
import sys
from threading import Thread


def guard(command: list[str]) -> int:
    """The command's exit status."""
    # A handler, unlike ignoring, is not handed down: the command itself ends on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    Thread(target=_end_with_stdin, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(guard(sys.argv[1:]))
