"""Candidates are valued in the state in which they were drawn, and in no other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling
from qguide.training.environment import StepResult
from qguide.training.exploration.decision_groups import Decisions, Draws, PlayedDecisions, play_decisions
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import first_reply
from qguide.training.rollouts.game import Game

_worlds = count()


@dataclass
class Corners:
    """Two steps, of which the first may show something else in each episode."""

    noisy: bool = False
    cut: bool = False
    taken: list[str] = field(default_factory=list)

    def reset(self) -> str:
        return "Turn."

    def step(self, action: str) -> StepResult:
        self.taken.append(action)
        if len(self.taken) == 1:
            return StepResult(f"World {next(_worlds) if self.noisy else 0}.", 0.0, False)
        won = action == "a"
        return StepResult("Over.", float(won), not self.cut, truncated=self.cut)

    def close(self) -> None:
        """Nothing to let go of."""


class Turner:
    """Has no choice at first, then two."""

    name = "turner"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [[self._turn(request, k) for k in range(request.n)] for request in requests]

    def _turn(self, request: SampleRequest, k: int) -> Candidate:
        action = "b" if len(request.history) > 1 and k % 2 else "a"
        return Candidate(Message("assistant", f"Action: {action}"), 1)


def played(make: Callable[[], Corners]) -> PlayedDecisions:
    task = play_decisions(
        Game(make, (0, "corners")),
        Decisions(draws=(Draws(n=3, temperature=1.0),)),
        lambda step, candidate, repetition: first_reply(lambda _: Sampling()),
        source="turner",
    )
    [result] = run_together([task], policy=Turner())
    return result


def test_candidates_of_another_world_are_refused() -> None:
    with pytest.raises(EnvironmentFailureError, match=r"1 actions: 'World 1\.' .*'World 0\.';"):
        played(lambda: Corners(noisy=True))


@pytest.mark.parametrize("cut", [False, True])
def test_the_last_step_is_valued_also_where_the_environment_cuts_it_off(cut: bool) -> None:
    first, last = played(lambda: Corners(cut=cut)).decisions
    assert len(first.candidates) == 1
    assert [candidate.outcome for candidate in last.candidates] == [1.0, 0.0]
