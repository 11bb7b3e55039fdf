"""Episode of an environment with another interface: rewards, endings and failures in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import Any, Protocol, TypeVar

from qguide.qnet.errors import EnvironmentFailureError, QGuideError
from qguide.qnet.packages import raised_text
from qguide.qnet.types import ToolCall
from qguide.training.environment import StepResult
from qguide.training.environments.adapters.config import AdaptedConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterAnswer:
    """One answer of the other side.

    Attributes:
        reward: on the way; None changes nothing.
        earned: the outcome so far, if the other side states it instead of rewards on the way.
    """

    observation: str
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    earned: float | None = None


class OtherSide(Protocol):
    """One episode of another interface, as an adapter sees it."""

    def reset(self) -> AdapterAnswer:
        """Start the episode."""
        ...

    def step(self, action: str) -> AdapterAnswer:
        """Take a bare action, or the text of a reply that calls no tool."""
        ...

    def close(self) -> None:
        """Let go of resources."""
        ...


class AdaptedEpisode:
    """See `qguide.training.environment.Environment`.

    The outcome is mapped to [0, 1] by `reward_range`. Whatever the other side raises fails the
    task, not the run.
    """

    def __init__(self, other: OtherSide, config: AdaptedConfig) -> None:
        self._other, self._config = other, config
        self._rewards: tuple[float, ...] = ()
        self._running, self._closed = False, False

    def reset(self) -> str:
        """Start the episode and return the first observation."""
        self._rewards = ()
        answer = _guarded(self._other.reset)
        self._running = True
        return answer.observation

    def step(self, action: str) -> StepResult:
        """Take one bare action."""
        self._require_running(action)
        return self._result(_guarded(lambda: self._other.step(action.strip())))

    def close(self) -> None:
        """Let go of the other side; safe to call twice."""
        if not self._closed:
            self._closed, self._running = True, False
            _guarded(self._other.close)

    def _require_running(self, action: str) -> None:
        if not self._running:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")

    def _result(self, answer: AdapterAnswer) -> StepResult:
        if answer.earned is not None:
            self._rewards = (answer.earned,)
        elif answer.reward is not None:
            before = self._rewards if self._config.sums_rewards else ()
            self._rewards = (*before, answer.reward)
        self._running = not (answer.terminated or answer.truncated)
        return StepResult(
            answer.observation,
            _guarded(self._outcome),
            terminated=answer.terminated,
            valid=answer.valid and not answer.observation.startswith(self._config.invalid),
            truncated=answer.truncated and not answer.terminated,
        )

    def _outcome(self) -> float:
        low, high = self._config.reward_range
        earned = fsum(self._rewards)  # ten rewards of 0.1 are 1
        return min(1.0, max(0.0, (earned - low) / (high - low)))


class AdaptedToolEpisode(AdaptedEpisode):
    """See `qguide.training.environment.ToolEnvironment`."""

    def call(self, call: ToolCall) -> StepResult:
        """Call one tool."""
        self._require_running(call.name)
        other: Any = self._other
        return self._result(_guarded(lambda: other.call(call)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the other side, and the rewards up to there."""

    other: object
    rewards: tuple[float, ...]


class SnapshotEpisode(AdaptedEpisode):
    """See `qguide.training.environment.SnapshotEnvironment`."""

    def snapshot(self) -> object:
        """The present state."""
        other: Any = self._other
        return Snapshot(_guarded(other.snapshot), self._rewards)

    def restore(self, snapshot: object) -> None:
        """Go on from a state of this task."""
        assert isinstance(snapshot, Snapshot)
        other: Any = self._other
        _guarded(lambda: other.restore(snapshot.other))
        self._rewards, self._running = snapshot.rewards, True


class SnapshotToolEpisode(SnapshotEpisode, AdaptedToolEpisode):
    """An episode with tools and snapshots."""


def _guarded(function: Callable[[], T]) -> T:
    try:
        return function()
    except QGuideError:
        raise
    except Exception as error:  # someone else's code, which may raise anything
        raise EnvironmentFailureError(raised_text(error)) from error
