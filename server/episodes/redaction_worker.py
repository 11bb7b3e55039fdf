"""The process of an operator's redaction function, which `server.episodes.redaction` starts.

    python -P -m server.episodes.redaction_worker module:function LIMIT_S

Requests come over stdin and answers go over stdout, both as JSON after its length in 8 bytes: a
list of texts in, `{"texts": […]}` or `{"error": "…"}` out. The first answer tells whether the
function could be imported. Of an error only the class is told, because its message may quote the
text. It imports nothing but the standard library, so that it starts at once.
"""

import importlib
import json
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, Any

LENGTH = struct.Struct(">Q")


def load_function(name: str) -> Callable[[str], str]:
    """The function `module:function`.

    Raises:
        TypeError: it cannot be called. Whatever else the module raises is raised.
    """
    module, _, function = name.partition(":")
    redact: Callable[[str], str] = getattr(importlib.import_module(module), function)
    if not callable(redact):
        raise TypeError(f"{name} is no function")
    return redact


def redacted(redact: Callable[[str], str], texts: list[str]) -> dict[str, Any]:
    """The answer to one request."""
    results = []
    for text in texts:
        try:
            result: object = redact(text)  # as promised, or anything else
            if not isinstance(result, str):
                return {"error": f"it returned {type(result).__name__}, not str"}
            result.encode()
        except BaseException as error:  # SystemExit, too: it ends one answer, not the server
            return {"error": type(error).__name__}
        results.append(result)
    return {"texts": results}


def read_message(file: IO[bytes]) -> Any:
    """The next message; None at the end."""
    head = file.read(LENGTH.size)
    return json.loads(file.read(*LENGTH.unpack(head))) if len(head) == LENGTH.size else None


def write_message(file: IO[bytes], message: object) -> None:
    """Send a message."""
    body = json.dumps(message).encode()
    file.write(LENGTH.pack(len(body)) + body)
    file.flush()


def main(name: str, limit_s: float) -> None:
    """Answer until stdin ends."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no answer
    try:
        redact = load_function(name)
    except BaseException as error:
        write_message(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    write_message(answers, {"texts": []})
    # The server kills a process that is too late. Should the server itself be gone, the alarm's
    # default action ends this one, even while the function keeps the interpreter to itself.
    has_alarm = hasattr(signal, "setitimer")
    while (texts := read_message(requests)) is not None:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
        answer = redacted(redact, texts)
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, answer)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
