"""Redaction functions that operators might bring, good and bad."""

import os
import re
import sys
from typing import Any

SECRET = "hunter2"
NO_FUNCTION = 7


def hide(text: str) -> str:
    """Hide the secret."""
    return text.replace(SECRET, "***")


def fail(text: str) -> str:
    """Fail, with the text in the message."""
    raise ValueError(f"cannot redact {text}")


def nothing(text: str) -> Any:
    """Return nothing."""


def leave(text: str) -> str:
    """End the program."""
    sys.exit(f"cannot redact {text}")


def interrupt(text: str) -> str:
    """Do as a Ctrl-C does."""
    raise KeyboardInterrupt


def die(text: str) -> str:
    """End the process without a word."""
    os._exit(3)


def half(text: str) -> str:
    """Return half a character."""
    return "\ud800"


def hang(text: str) -> str:
    """Match a pattern that takes for ever on some texts, and keeps the interpreter to itself."""
    re.match(r"(a+)+$", text)
    return text


HANGS = "a" * 64 + "!"
"""A text on which `hang` takes for ever."""
