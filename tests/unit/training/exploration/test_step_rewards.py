"""Step rewards by roll-outs: their mean, their seeds, their cost, and what ends them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.errors import EnvironmentFailureError, HistoryTooLongError, UpstreamUnavailableError
from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.environment import StepResult
from qguide.training.exploration.step_rewards import StepReward, StepRewards, step_reward
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.game import Game
from qguide.training.trajectory import Step, path_history
from tests.support.tiny_models import policy_model, renderer


@dataclass
class Coin:
    """Two letters end an episode; its reward is the share of "a" among them."""

    word: str = ""

    def reset(self) -> str:
        return "Toss."

    def step(self, action: str) -> StepResult:
        self.word += action
        ended = len(self.word) == 2
        return StepResult(self.word, self.word.count("a") / 2 if ended else 0.0, ended)

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class Replay:
    """Answers as it did in the steps before, and then anything without an end."""

    steps: Sequence[Step]
    taken: int = 0

    def reset(self) -> str:
        return "Toss."

    def step(self, action: str) -> StepResult:
        self.taken += 1
        known = self.taken <= len(self.steps)
        return StepResult(self.steps[self.taken - 1].observation if known else "?", 0.0, False)

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass
class Tosser:
    """Draws "a" or "b" by the seed; too long for it is a state that begins with `dreaded`."""

    name: str = "tosser"
    dreaded: str = ""
    error: type[Exception] = HistoryTooLongError
    batches: list[list[SampleRequest]] = field(default_factory=list)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        if self.dreaded and any(r.history[-1].content == self.dreaded for r in requests):
            raise self.error("not that")
        self.batches.append(list(requests))
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        rng = Random(request.sampling.seed)
        letters = [rng.choice("ab") for _ in range(request.n)]
        return [Candidate(Message("assistant", f"Action: {a}"), 3) for a in letters]


def reward_after(word: str, policy: Tosser, *, rollouts: int = 4, seed: int = 0, max_steps: int = 9) -> StepReward:
    steps = [
        Step(f"Action: {letter}", word[:number], terminated=number == 2, reward=0.5 * (number == 2))
        for number, letter in enumerate(word, start=1)
    ]
    task = step_reward(
        Game(Coin, (seed, "task", len(word))),
        "Toss.",
        steps,
        options=StepRewards(rollouts=rollouts, max_steps=max_steps),
    )
    [found] = run_together([task], policy=policy)
    return found


def test_a_reward_is_the_mean_outcome_of_the_roll_outs() -> None:
    found = reward_after("a", Tosser(), rollouts=200)
    outcomes = [rollout.outcome_reward for rollout in found.rollouts]
    assert set(outcomes) == {0.5, 1.0}
    assert found.mean == sum(outcomes) / 200
    assert found.mean == pytest.approx(0.75, abs=0.1)
    assert {(rollout.steps, rollout.terminated) for rollout in found.rollouts} == {(1, True)}
    assert found.completion_tokens == 200 * 3


def test_roll_outs_in_one_state_are_draws_of_one_request() -> None:
    policy = Tosser()
    reward_after("", policy, rollouts=8)
    first, second = policy.batches
    assert [request.n for request in first] == [8]
    assert sorted(request.history[-1].content for request in second) == ["a", "b"]
    assert sum(request.n for request in second) == 8
    assert {request.role for request in (*first, *second)} == {"rollout"}


def test_the_same_seed_rolls_out_alike_and_another_differently() -> None:
    found = [reward_after("", Tosser(), rollouts=16, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_an_episode_that_is_over_has_its_outcome_and_costs_nothing() -> None:
    policy = Tosser()
    found = reward_after("ab", policy)
    assert (found.mean, len(found.rollouts), found.completion_tokens) == (0.5, 1, 0)
    assert reward_after("a", policy, max_steps=1).mean == 0.0
    assert not policy.batches


def test_a_roll_out_that_outgrows_the_context_ends_alone() -> None:
    found = reward_after("", Tosser(dreaded="b"), rollouts=16)
    lengths = [rollout.steps for rollout in found.rollouts]
    assert set(lengths) == {1, 2}
    assert all(r.terminated == (r.steps == 2) for r in found.rollouts)


def test_any_other_failure_of_a_draw_is_the_tasks() -> None:
    with pytest.raises(UpstreamUnavailableError, match=r"that$"):
        reward_after("", Tosser(dreaded="b", error=UpstreamUnavailableError), rollouts=16)


def test_steps_that_replay_differently_are_refused() -> None:
    before = [Step("Action: a", "?")]
    task = step_reward(Game(Coin, (0,)), "Toss.", before, options=StepRewards())
    with pytest.raises(EnvironmentFailureError, match=r"1 actions: 'a' .*'\?';"):
        run_together([task], policy=Tosser())


@pytest.mark.parametrize("cache_bytes", [0, 2**24])
def test_five_roll_outs_from_a_state_read_its_tokens_once(cache_bytes: int) -> None:
    before = [Step("Action: a", "a"), Step("Action: b", "ab " * 20)]
    computed = []
    for rollouts in (1, 5):
        policy = LocalPolicy(policy_model(), cache_bytes=cache_bytes)
        task = step_reward(
            Game(lambda: Replay(before), (0, rollouts)),
            "Toss.",
            before,
            options=StepRewards(rollouts=rollouts, max_steps=3, max_tokens=6),
        )
        [found] = run_together([task], policy=policy)
        assert len(found.rollouts) == rollouts
        computed.append(policy.prefill_tokens)
    history = path_history("Toss.", before)
    assert computed == [len(renderer().encode_history(history))] * 2
