"""One trajectory by reward rising sampling: each step's draws, with their rewards (RRO 3.2).

    draw a_t ~ pi( . | e_1:t-1) until r(s_t, a_t) >= r(s_t-1, a_t-1)                (algorithm 1)
    chosen: the draw with the highest reward; rejected: the one with the lowest
    loss = DPO of these pairs                                           (3.4; policy_training/dpo_loss.py)

r is the mean outcome of roll-outs (`step_rewards.py`).

The paper draws without a limit; the limit here is ours, because a reward that stands at its highest
value by chance may never be reached again. Two more things are ours. The trajectory goes on with
the first draw of a step, which is as good a sample of the policy as one drawn apart, and has its
reward already. A draw whose action was drawn before at the same step has that action's reward, and
counts as a draw.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pydantic import Field

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import RolloutRow
from qguide.qnet.types import Candidate, SampleRequest, Sampling
from qguide.training.algorithms.preferences import Preference
from qguide.training.data.decision_groups import GroupDecision, candidate_node
from qguide.training.exploration.decision_groups import PlayedDecisions
from qguide.training.exploration.step_rewards import StepReward, StepRewards, step_reward
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import Step, reply_key

StopRule = Literal["rising", "never"]
"""Stop at the first reward that has not fallen (RRO), or only at the limit (fixed size)."""

THIRDS: Final = ("initial", "middle", "final")


class StepCount(NamedTuple):
    """Counts of a trajectory's steps, to be added up over trajectories."""

    rising: int
    steps: int


def draws_another(rewards: Sequence[float], *, before: float, max_draws: int, stop: StopRule) -> bool:
    """True if a step needs one more draw."""
    risen = stop == "rising" and bool(rewards) and rewards[-1] >= before
    return not risen and len(rewards) < max_draws


def extreme_pair(rewards: Sequence[float]) -> Preference | None:
    """The draws with the highest and the lowest reward, the first of equal ones.

    None if all rewards are equal, because then nothing is preferred.
    """
    numbers = range(len(rewards))
    best = max(numbers, key=rewards.__getitem__)
    worst = min(numbers, key=rewards.__getitem__)
    return Preference(best, worst) if rewards[best] > rewards[worst] else None


def rising_shares(rewards: Sequence[float]) -> tuple[StepCount, StepCount, StepCount]:
    """Steps whose reward rises, by third of the trajectory (RRO table 2).

    Args:
        rewards: (n + 1,) of the task itself, then of each step that the trajectory took.

    Returns:
        (rising steps, steps) of each of `THIRDS`; rising is strictly above the step before. Step t
        of n is in third floor(3 (t - 1) / n).
    """
    steps = len(rewards) - 1
    rising, counts = [0, 0, 0], [0, 0, 0]
    for step in range(steps):
        third = 3 * step // steps
        counts[third] += 1
        rising[third] += rewards[step + 1] > rewards[step]
    first, second, third_ = (StepCount(*pair) for pair in zip(rising, counts, strict=True))
    return first, second, third_


class Rising(JobOptions):
    """Options of the draws of a step.

    Attributes:
        stop: "rising" stops at the first draw whose reward is at least that of the step before;
            "never" makes `max_draws` draws, the ablation with fixed-size exploration.
        max_draws: most draws of a step; the paper does not state any limit (5 is its fixed size).
        temperature: sampling temperature of the draws; the paper does not state it.
        go_on: the action with which the trajectory goes on: the first drawn, a sample of the policy
            as in algorithm 1, or the one with the highest reward (ours).
    """

    stop: StopRule = "rising"
    max_draws: int = Field(default=5, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    go_on: Literal["first", "chosen"] = "first"


@dataclass(frozen=True, slots=True)
class RisingTrajectory(PlayedDecisions):
    """A trajectory, the draws of its steps, and their cost.

    Attributes:
        start: reward of the task itself, before any step.
        rollout_tokens: tokens generated for their rewards.
    """

    start: StepReward
    rollout_tokens: int


@dataclass(slots=True)
class _Drawn:
    """The draws of one step.

    Attributes:
        keys: action of each draw, in order.
        found: the first draw of each action, its step and its reward.
    """

    keys: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    found: dict[str, tuple[Candidate, Step, StepReward]] = field(default_factory=dict)
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Explorer:
    """The game that is explored, and with what."""

    game: Game
    options: Rising
    rewards: StepRewards
    first: str

    def reward(self, steps: list[Step], *parts: object) -> RolloutTask[StepReward]:
        """Reward of the last of some steps."""
        return step_reward(self.game, self.first, steps, options=self.rewards, parts=parts)


def explore_rising(game: Game, options: Rising, rewards: StepRewards, *, source: str) -> RolloutTask[RisingTrajectory]:
    """Play one trajectory, and draw at each step until the reward rises; a rollout task.

    Args:
        rewards: of the roll-outs; its limits are those of the trajectory, too.
    """
    first = yield from game.first()
    explorer = _Explorer(game, options, rewards, first)
    start = yield from explorer.reward([])
    before = start.mean
    steps: list[Step] = []
    decisions: list[GroupDecision] = []
    tokens, rollout_tokens = 0, start.completion_tokens
    while len(steps) < rewards.max_steps and not (steps and steps[-1].ended):
        try:
            drawn = yield from _draw(explorer, steps, before=before)
        except HistoryTooLongError:
            if not steps:
                raise
            break
        decision = _decision(drawn, options, source=source)
        _, step, reward = list(drawn.found.values())[decision.chosen]
        steps.append(step)
        before = reward.mean
        decisions.append(decision)
        tokens += drawn.completion_tokens
        rollout_tokens += sum(r.completion_tokens for _, _, r in drawn.found.values())
    return RisingTrajectory(first, tuple(decisions), tokens, start, rollout_tokens)


def _draw(explorer: _Explorer, steps: list[Step], *, before: float) -> RolloutTask[_Drawn]:
    game, options, drawn = explorer.game, explorer.options, _Drawn()
    history = game.chat.history(explorer.first, steps)
    while draws_another(drawn.rewards, before=before, max_draws=options.max_draws, stop=options.stop):
        place = (len(steps) + 1, len(drawn.keys))
        seed = derived_seed(*game.seeds, *place, "draw")
        sampling = Sampling(options.temperature, explorer.rewards.max_tokens, seed=seed)
        [candidate] = yield SampleRequest(history, 1, sampling)
        drawn.completion_tokens += candidate.completion_tokens
        key = reply_key(candidate.message)
        if key not in drawn.found:
            reply = candidate.message
            step = yield from game.try_reply(explorer.first, steps, reply)
            reward = yield from explorer.reward([*steps, step], *place)
            drawn.found[key] = (candidate, step, reward)
        drawn.keys.append(key)
        drawn.rewards.append(drawn.found[key][2].mean)
    return drawn


def _decision(drawn: _Drawn, options: Rising, *, source: str) -> GroupDecision:
    counts = Counter(drawn.keys)
    chosen = 0
    if options.go_on == "chosen":
        means = [reward.mean for _, _, reward in drawn.found.values()]
        pair = extreme_pair(means)
        chosen = pair.better if pair else 0
    return GroupDecision(
        tuple(
            candidate_node(candidate, counts[key], step, rollout_rows(reward, after=1), source=source)
            for key, (candidate, step, reward) in drawn.found.items()
        ),
        chosen,
    )


def rollout_rows(reward: StepReward, *, after: int = 0) -> tuple[RolloutRow, ...]:
    """The roll-outs that gave a reward as rows.

    Args:
        after: actions before them that count as theirs.
    """
    return tuple(
        RolloutRow(outcome_reward=rollout.outcome_reward, steps=after + rollout.steps, terminated=rollout.terminated)
        for rollout in reward.rollouts
    )
