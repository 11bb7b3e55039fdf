"""Environments that each break one rule of the contract."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import ClassVar

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, StepResult, Task

OPENING = "Room {room}. Your task is to: wait for 3 turns."


@dataclass(frozen=True)
class Faults:
    """Rules that an environment breaks."""

    same_ids: bool = False
    same_start: bool = False
    random_start: bool = False
    steps_before_reset: bool = False
    all_valid: bool = False
    meaningless_acts: bool = False
    wins_at_once: bool = False
    large_reward: bool = False
    keeps_spaces: bool = False
    random_answers: bool = False
    dice: bool = False
    shared: bool = False
    closes_once: bool = False
    raises: bool = False
    cannot_start: bool = False


_noise: Iterator[int] = count()


class Waiting:
    """One episode: "look" and "wait"; see `qguide.training.environment.Environment`."""

    open_rooms: ClassVar[set[int]] = set()

    def __init__(self, room: int, faults: Faults) -> None:
        self._room, self._faults = room, faults
        self._waited, self._running, self._closed = 0, False, False

    def reset(self) -> str:
        if self._faults.cannot_start:
            raise RuntimeError("no room is free")
        self._running = True
        Waiting.open_rooms.add(self._room)
        start = OPENING.format(room=1 if self._faults.same_start else self._room)
        return f"{start} {next(_noise)}" if self._faults.random_start else start

    def step(self, action: str) -> StepResult:
        faults = self._faults
        if faults.raises:
            raise KeyError("room")
        if not self._running and not faults.steps_before_reset:
            raise EnvironmentFailureError("no episode is running; reset first")
        if faults.shared and self._room not in Waiting.open_rooms:
            raise EnvironmentFailureError("the room is closed")
        words = action if faults.keeps_spaces else action.strip()
        known = words in ("look", "wait")
        self._waited += words == "wait" or (faults.meaningless_acts and not known)
        text = f"You have waited {self._waited} turns." if known else "You cannot do that."
        if faults.random_answers or (faults.dice and words == "wait"):
            text += f" It is {Random(next(_noise)).random()} o'clock."
        won = self._waited >= 3 or faults.wins_at_once
        reward = 2.0 if faults.large_reward else float(won)
        return StepResult(text, reward, won, valid=known or faults.all_valid)

    def close(self) -> None:
        if self._faults.closes_once and self._closed:
            raise RuntimeError("closed twice")
        if self._faults.shared:
            Waiting.open_rooms.clear()
        self._closed = True


class WaitingSuite:
    """Rooms 1 and 2; see `qguide.training.environment.Suite`."""

    name = "waiting"

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self.tasks: Sequence[Task] = [
            Task("room" if faults.same_ids else f"room {room}", "wait", str(room)) for room in (1, 2)
        ]

    def make(self, task: Task) -> Waiting:
        return Waiting(int(task.source), self._faults)

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


WAITING: EnvironmentBundle[EnvironmentConfig] = EnvironmentBundle(
    name="tests.support.broken_environments:WAITING",
    config=EnvironmentConfig,
    build_suite=lambda config: WaitingSuite(Faults()),
    harmless="look",
)


def broken(**faults: bool) -> EnvironmentBundle[EnvironmentConfig]:
    """The environment with some faults."""
    return replace(WAITING, build_suite=lambda _: WaitingSuite(Faults(**faults)))


RANDOM = broken(random_answers=True)
