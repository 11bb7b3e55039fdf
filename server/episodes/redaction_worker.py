"""Worker process for the operator's redaction function, started by the server.

    python -P -m qguide.server.episodes.redaction_worker module:function LIMIT_S

Requests are read from stdin and answers written to stdout, each a line of JSON: a list of texts in, `{"texts": […]}` or
`{"error": "…"}` out. The first answer reports whether the function could be imported. An error is reported by its class
only, because its message may quote the text. The module imports only the standard library, so that it starts quickly.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any


def load_function(name: str) -> Callable[[str], str]:
    """Import the function `module:function`; exceptions of its module propagate."""
    module, _, function = name.partition(":")
    redact: Callable[[str], str] = getattr(importlib.import_module(module), function)
    if not callable(redact):
        raise TypeError(f"{name} is not a function")
    return redact


def redacted(redact: Callable[[str], str], texts: list[str]) -> dict[str, Any]:
    """Redact the texts of one request; returns its answer."""
    results = []
    for text in texts:
        try:
            result: object = redact(text)  # not trusted to be a str
            if not isinstance(result, str):
                return {"error": f"it returned {type(result).__name__}, not str"}
            result.encode()
        except BaseException as error:  # including SystemExit
            return {"error": type(error).__name__}
        results.append(result)
    return {"texts": results}


def write_message(file: IO[bytes], message: object) -> None:
    """Write a message."""
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def main(name: str, limit_s: float) -> None:
    """Answer requests until stdin is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that the function prints must not mix with the answers
    try:
        redact = load_function(name)
    except BaseException as error:
        write_message(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    write_message(answers, {"texts": []})
    # The server kills a process that exceeds the limit. If the server itself is gone, the alarm's default action ends
    # this process, even while the function holds the GIL.
    has_alarm = hasattr(signal, "setitimer")
    for request in sys.stdin.buffer:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
        answer = redacted(redact, json.loads(request))
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, answer)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
