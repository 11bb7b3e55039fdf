"""Help texts of all commands, as they are printed."""

from collections.abc import Iterator
from typing import Any

from rich.text import Text
from typer.main import get_command

from qguide.cli import app


def _helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every help text of a command and of those below it, with its place."""
    yield path, command.help or ""
    for parameter in command.params:
        yield f"{path} {parameter.name}", getattr(parameter, "help", "") or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from _helps(below, f"{path} {name}")


def test_no_word_in_brackets_is_read_as_markup() -> None:
    helps = dict(_helps(get_command(app), "qguide"))
    assert len(helps) > 100
    eaten = [place for place, text in helps.items() if Text.from_markup(text).plain != text]
    assert eaten == [], "Rich reads [word] as a style and prints nothing"
