"""Notices about retries: one line for many, and none left behind."""

from typing import Any

import pytest
import stamina
from stamina.instrumentation import get_on_retry_hooks

from qguide.commands import errors
from qguide.commands.errors import shown_errors


def fail_twice(message: str) -> None:
    """Two retries without a wait."""
    for attempt in stamina.retry_context(on=OSError, attempts=3, wait_initial=0, wait_jitter=0):
        with attempt:
            if attempt.num < 3:
                raise OSError(message)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(errors, "time", Clock)
    return now


def test_many_retries_are_one_line(clock: list[float], capsys: Any) -> None:
    before = get_on_retry_hooks()
    with shown_errors():
        fail_twice("upstream [a] cannot be reached")
        fail_twice("upstream [b] cannot be reached")
        clock[0] += errors.EVERY_S
        fail_twice("upstream [c] cannot be reached")
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["trying again: upstream [a] cannot be reached", "trying again: upstream [c] cannot be reached"]
    assert get_on_retry_hooks() == before
