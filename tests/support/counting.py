"""An environment outside QGuide, with its own chat format, partial credit and success criterion.

The task is to count up to a goal. Every number earns its share of the reward, and more than half
of the reward is a success. Jobs name it by its import path, as they would a user's own.
"""

import re
from collections.abc import Sequence
from copy import copy
from random import Random

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import Candidate, Message, SampleRequest, Scorer, ScoreRequest, ScoreResult
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, StepResult, Task
from qguide.training.trajectory import ChatFormat

NAME = "tests.support.counting:COUNTING"
SYSTEM = "Say one number in angle brackets."


class Counting:
    """One episode; see `qguide.training.environment.Environment`."""

    def __init__(self, goal: int) -> None:
        self._goal, self._said = goal, -1

    def reset(self) -> str:
        self._said = 0
        return f"Count from 1 to {self._goal}."

    def step(self, action: str) -> StepResult:
        if self._said < 0:
            raise EnvironmentFailureError("reset first")
        valid = action.strip() == str(self._said + 1)
        self._said += valid
        done = self._said == self._goal
        return StepResult(f"{self._said} said.", self._said / self._goal, done, valid)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


class CountingConfig(EnvironmentConfig):
    """Goals from 4 on."""

    name: str = NAME
    count: int = 3


class CountingSuite:
    """See `qguide.training.environment.Suite`."""

    name = "counting"

    def __init__(self, count: int) -> None:
        self.tasks: Sequence[Task] = [Task(f"to {goal}", "count", str(goal)) for goal in range(4, 4 + count)]

    def make(self, task: Task) -> Counting:
        return Counting(int(task.source))

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


def number_in(reply: str) -> str:
    """The number in angle brackets."""
    found = re.search(r"<(\d+)>", reply)
    return found[1] if found else ""


class CountingExpert:
    """Says the next number."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self._next = 1

    def reply(self, observation: str) -> str:
        said = re.match(r"(\d+) said", observation)
        self._next = int(said[1]) + 1 if said else 1
        return f"<{self._next}>"

    def deviate(self, rng: Random) -> str:
        return "<0>"

    def follow(self, reply: str) -> None:
        """Do nothing: the next observation is enough."""

    def copy(self) -> "CountingExpert":
        return copy(self)


class CountingPolicy:
    """The expert's next number, or at a temperature above 0 often another."""

    name = "counting"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        assert [m.role for m in request.history[:2]] == ["system", "user"]
        assert request.history[0].content == SYSTEM
        right = CountingExpert().reply(request.history[-1].content)
        rng = Random(request.sampling.seed)
        wrong = [right if request.sampling.temperature == 0 else "<0>", right]
        replies = [rng.choice(wrong) for _ in range(request.n)]
        return [Candidate(Message("assistant", reply), 1) for reply in replies]


class LikesProgress(Scorer):
    """A scorer whose Q is the number in the candidate."""

    name = "likes-progress"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(float(number_in(m.content)) for m in request.candidates), 1) for request in requests]


COUNTING = EnvironmentBundle(
    name=NAME,
    config=CountingConfig,
    build_suite=lambda config: CountingSuite(config.count),
    chat=ChatFormat(system=SYSTEM, parse_action=number_in),
    is_success=lambda reward, terminated: reward > 0.5,
    build_expert=CountingExpert,
    build_expert_policy=CountingPolicy,
)
