"""Corridors for workers: slow, deadly and unrepeatable ones."""

import json
import os
import signal
from dataclasses import replace
from functools import partial
from time import monotonic, sleep
from typing import Any

from qguide.training.environment import EnvironmentBundle, StepResult, Task
from qguide.training.environments.corridor import Corridor, CorridorConfig, CorridorEnvironment, CorridorSuite

STEP_S = 0.05
GATE = "QGUIDE_TEST_GATE"


class AnyCorridorConfig(CorridorConfig):
    """The `[environment]` table of each of them."""

    name: Any = ""  # an import path


def make_no_host() -> Any:
    """Raise an error that is none of ours."""
    raise ValueError("no host")


class Slow(CorridorEnvironment):
    """Each step takes 50 ms."""

    def step(self, action: str) -> StepResult:
        """Sleep, then take the action."""
        sleep(STEP_S)
        return super().step(action)


class Timed(Slow):
    """Observations tell when and where the step was taken."""

    def step(self, action: str) -> StepResult:
        """Take the action and its time."""
        began = monotonic()
        result = super().step(action)
        told = {"process": os.getpid(), "began": began, "ended": monotonic()}
        return replace(result, observation=json.dumps(told))


class Deadly(CorridorEnvironment):
    """Opening the door ends the process, in corridors of six rooms."""

    def step(self, action: str) -> StepResult:
        """Take the action, or end everything."""
        if action == "open door" and self._corridor.rooms == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Gated(CorridorEnvironment):
    """Corridors of six rooms wait for a file, if the environment names one."""

    def step(self, action: str) -> StepResult:
        """Wait, then take the action."""
        gate = os.environ.get(GATE)
        while gate and self._corridor.rooms == 6 and not os.path.exists(gate):
            sleep(0.01)
        return super().step(action)


class Unpicklable(CorridorEnvironment):
    """Its states cannot be pickled."""

    def snapshot(self) -> object:
        """A state that only this process can hold."""
        return (os.getpid(), lambda: self)

    def restore(self, snapshot: object) -> None:
        """Nothing."""


class TwoArgumentsError(Exception):
    """It can be pickled; what comes out is built with one argument, and fails."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} {where}")


class Unloadable(Unpicklable):
    """Its states can be pickled and not unpickled."""

    def snapshot(self) -> object:
        """A state that is lost on the way."""
        return TwoArgumentsError("no", "where")


class Unrepeatable(CorridorEnvironment):
    """Observations name the process, so that no replay elsewhere is the same."""

    def step(self, action: str) -> StepResult:
        """Sleep, take the action and tell where."""
        sleep(0.01)
        result = super().step(action)
        return replace(result, observation=f"{result.observation} ({os.getpid()})")


class OneSuite(CorridorSuite):
    """Corridors of one class."""

    def __init__(self, environment: type[CorridorEnvironment], count: int) -> None:
        super().__init__(0, count)
        self._environment = environment

    def make(self, task: Task) -> CorridorEnvironment:
        """A fresh episode."""
        return self._environment(Corridor.of_seed(int(task.source)))


def _build(environment: type[CorridorEnvironment], config: AnyCorridorConfig) -> OneSuite:
    return OneSuite(environment, config.count)


def _bundle(name: str, environment: type[CorridorEnvironment]) -> EnvironmentBundle[AnyCorridorConfig]:
    return EnvironmentBundle(
        name=f"{__name__}:{name}", config=AnyCorridorConfig, build_suite=partial(_build, environment), harmless="look"
    )


SLOW = _bundle("SLOW", Slow)
TIMED = _bundle("TIMED", Timed)
DEADLY = _bundle("DEADLY", Deadly)
GATED = _bundle("GATED", Gated)
UNPICKLABLE = _bundle("UNPICKLABLE", Unpicklable)
UNLOADABLE = _bundle("UNLOADABLE", Unloadable)
UNREPEATABLE = replace(_bundle("UNREPEATABLE", Unrepeatable), branching="none")
