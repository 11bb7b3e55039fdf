"""The rro job: scripted trajectories worked out by hand, and corridors with a wanderer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from qguide.qnet.records import TreeRow
from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import EXPLORED, read_rows
from qguide.training.environment import StepResult
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.exploration.rising import Rising, RisingTrajectory, explore_rising
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.jobs.rro import RroConfig, figures_of, run_rro, taken_rewards
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.game import Game
from qguide.training.trajectory import action_key
from tests.support.listed_models import Speechless
from tests.support.wanderer import Wanderer


@dataclass
class Wheel:
    """A letter, then "spin", of which there are ten: the letter says how many of them win."""

    wins: dict[str, int]
    letter: str = ""

    def reset(self) -> str:
        return "Bet."

    def step(self, action: str) -> StepResult:
        if not self.letter:
            self.letter = action
            return StepResult(f"You bet on {action}.", 0.0, terminated=False)
        won = int(action) < self.wins[self.letter]
        return StepResult("It stops.", float(won), terminated=True)

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class Bettor:
    """Bets the letters in order, and spins all ten numbers in a roll-out."""

    letters: str
    start: int = 5
    name: str = "bettor"
    acts: list[SampleRequest] = field(default_factory=list)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        first = len(request.history) == 1
        if request.role == "act":
            drawn = [self.letters[len(self.acts)]] if first else ["0"]
            self.acts.append(request)
        elif first:
            drawn = ["w"] * self.start + ["l"] * (request.n - self.start)
        else:
            drawn = [str(number) for number in range(request.n)]
        return [Candidate(Message("assistant", f"Thought: x\nAction: {a}"), 1) for a in drawn]


WINS = {"a": 2, "b": 6, "c": 5, "d": 4, "w": 10, "l": 0}


def bet(letters: str, **options: object) -> RisingTrajectory:
    """A trajectory that begins with these draws; a roll-out from the start wins in 5 of 10."""
    task = explore_rising(
        Game(lambda: Wheel(WINS), (0, "wheel")),
        Rising.model_validate(options),
        StepRewards(rollouts=10, max_steps=2),
        source="bettor",
    )
    [explored] = run_together([task], policy=Bettor(letters))
    return explored


def first_step(explored: RisingTrajectory) -> list[tuple[str, int, float]]:
    """Action, draws and reward of each candidate of the first step."""
    return [(action_key(c.action), c.count, c.outcome) for c in explored.decisions[0].candidates]


def test_the_second_draw_rises_and_ends_the_step() -> None:
    explored = bet("abc")
    assert explored.start.mean == 0.5
    assert first_step(explored) == [("a", 1, 0.2), ("b", 1, 0.6)]


def test_a_reward_as_high_as_before_ends_the_step() -> None:
    assert first_step(bet("cab")) == [("c", 1, 0.5)]


def test_a_step_that_never_rises_has_as_many_draws_as_allowed() -> None:
    assert first_step(bet("adaadb")) == [("a", 3, 0.2), ("d", 2, 0.4)]
    assert first_step(bet("adaadb", max_draws=2)) == [("a", 1, 0.2), ("d", 1, 0.4)]


def test_a_fixed_size_draws_on_after_a_rise() -> None:
    assert first_step(bet("bacda", stop="never")) == [("b", 1, 0.6), ("a", 2, 0.2), ("c", 1, 0.5), ("d", 1, 0.4)]


def test_the_trajectory_goes_on_with_the_first_draw_or_the_best() -> None:
    # "0" wins after any bet, so the reward of the last step is 1, above that of the first one.
    for go_on, taken in (("first", "a"), ("chosen", "b")):
        explored = bet("abc", go_on=go_on)
        assert [action_key(decision.taken.action) for decision in explored.decisions] == [taken, "0"]
        assert explored.decisions[1].taken.outcome == 1.0


def configure(output: Path, *, count: int = 6, **changes: object) -> RroConfig:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=count),
        "rewards": StepRewards(rollouts=4, max_steps=8),
        "parallel": 4,
    }
    return RroConfig.model_validate(values | changes)


def explore(config: RroConfig, policy: Wanderer | Speechless | None = None) -> dict[str, float]:
    return run_rro(config, policy=policy or Wanderer(["Hm."]), console=Console(file=StringIO()))


def explored_of(config: RroConfig) -> list[TreeRow]:
    rows = read_groups(config.output / EXPLORED)
    return sorted(rows, key=lambda row: row.task_id)


def pairs_of(config: RroConfig) -> list[PreferenceRow]:
    return list(read_rows(config.output / "rows.jsonl", PreferenceRow))


def test_pairs_are_the_best_and_the_worst_draw_of_each_step(tmp_path: Path) -> None:
    config = configure(tmp_path)
    figures = explore(config)
    pairs, rows = pairs_of(config), explored_of(config)
    expected = []
    for row in rows:
        for depth, decision in enumerate(decisions_of(row)):
            outcomes = [candidate.outcome for candidate in decision.candidates]
            if max(outcomes) > min(outcomes):
                draws = sum(candidate.count for candidate in decision.candidates)
                expected.append((row.task_id, depth, max(outcomes), min(outcomes), draws))
    assert expected
    assert [(p.task_id, p.depth, p.chosen_value, p.rejected_value, p.candidates) for p in pairs] == expected
    assert {(p.level, p.source) for p in pairs} == {("step", "rising")}
    assert figures["pairs"] == len(pairs)


def test_steps_stop_at_the_first_reward_that_has_not_fallen(tmp_path: Path) -> None:
    config = configure(tmp_path)
    figures = explore(config)
    draws = []
    for row in explored_of(config):
        rewards = taken_rewards(row)
        for before, decision in zip(rewards, decisions_of(row), strict=False):
            draws.append(sum(candidate.count for candidate in decision.candidates))
            assert draws[-1] == 5 or any(c.outcome >= before for c in decision.candidates)
    assert figures["draws_per_step"] == pytest.approx(sum(draws) / len(draws))
    assert 1 < figures["draws_per_step"] < 5
    assert set(draws) >= {1, 5}


def test_the_ablation_makes_the_same_draws_and_more(tmp_path: Path) -> None:
    rising = configure(tmp_path / "rising")
    fixed = configure(tmp_path / "fixed", rising=Rising(stop="never"))
    explore(rising)
    assert explore(fixed)["draws_per_step"] == 5.0
    assert {(p.source, p.candidates) for p in pairs_of(fixed)} == {("fixed", 5)}
    for some, all_ in zip(explored_of(rising), explored_of(fixed), strict=True):
        for few, many in zip(decisions_of(some), decisions_of(all_), strict=True):
            place = {name: getattr(few.taken, name) for name in ("id", "parent", "count")}
            assert few.taken == many.taken.model_copy(update=place)
            drawn = Counter({c.action: c.count for c in few.candidates})
            assert drawn <= Counter({c.action: c.count for c in many.candidates})


def test_the_trend_is_that_of_the_steps_taken(tmp_path: Path) -> None:
    config = configure(tmp_path)
    figures = explore(config)
    rows = explored_of(config)
    assert figures_of(rows).items() <= figures.items()
    rises = 0
    for row in rows:
        rewards = taken_rewards(row)
        rises += sum(now > before for before, now in pairwise(rewards))
    by_third = sum(
        figures[f"rising_{third}"] * _steps_in(rows, number)
        for number, third in enumerate(("initial", "middle", "final"))
    )
    assert by_third == pytest.approx(rises)


def _steps_in(rows: list[TreeRow], third: int) -> int:
    return sum(3 * step // len(decisions_of(row)) == third for row in rows for step in range(len(decisions_of(row))))


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_killed_run_goes_on_to_the_same_rows(tmp_path: Path, parallel: int) -> None:
    whole, killed = configure(tmp_path / "whole"), configure(tmp_path / "killed", parallel=parallel)
    figures = explore(whole)
    with pytest.raises(KeyboardInterrupt):
        explore(killed, Wanderer(["Hm."], dies_after=60))
    assert not (killed.output / "rows.jsonl").exists()
    resumed = explore(killed)
    assert explored_of(killed) == explored_of(whole)
    assert pairs_of(killed) == pairs_of(whole)
    assert resumed["draws_per_step"] == figures["draws_per_step"]


def test_another_seed_draws_differently(tmp_path: Path) -> None:
    one, other = configure(tmp_path / "0"), configure(tmp_path / "1", seed=1)
    explore(one)
    explore(other)
    assert pairs_of(one) != pairs_of(other)


def test_a_task_without_room_for_a_reply_fails(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"6 tasks .*corridor:0"):
        explore(configure(tmp_path), Speechless())
