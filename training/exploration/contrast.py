"""Exploration of an agent along an expert's trajectory, and its mistakes there (IPR 3.2 and 3.3).

IPR (2024) repeats: explore as follows, then train the agent on the pairs by the sum of outcome-DPO,
step-DPO and SFT (equations 7 to 10, `policy_training/dpo_loss.py`); DPO's reference stays the SFT
policy. Step rewards are means of roll-outs (`step_rewards.py`).

The agent plays to the end from every state of the expert's trajectory. An episode in which it takes
the expert's action, word for word, is its episode from the next state, too, and is not played
again. Step rewards are computed only of the states that need them: where the agent takes another
action and then ends worse (ours; the pairs are the same). Where the expert errs on purpose, nothing
is compared (ours): its action is no example.

    the agent makes a mistake at step t if
    r(s_t, a_t) - r(s_t, a'_t) > tau   and   outcome of its episode < outcome of the expert's

a is the expert's action and a' the agent's in the same state.

A step-reward model, regressed on Monte Carlo step rewards, can replace the roll-outs (table 5).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from qguide.qnet.types import Sampling, ScoreResult
from qguide.training.exploration.step_rewards import StepRewards, step_reward
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import first_reply, seeded
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import RolloutTask, value_request
from qguide.training.trajectory import Step


class Contrast(JobOptions):
    """Options of the agent's exploration.

    Attributes:
        tau: the agent's action is a mistake if its reward is lower by more than this; 0.5 is the
            paper's for ALFWorld, 0.1 for WebShop and InterCode-SQL.
        temperature: sampling temperature of the agent; 0, the paper's, is greedy.
    """

    tau: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=0.0, ge=0)


@dataclass(frozen=True, slots=True)
class RewardModel:
    """A Q model that answers the task's score requests with step rewards."""

    observes: bool = False


@dataclass(frozen=True, slots=True)
class Deviation:
    """A state of the expert's trajectory where the agent takes another action than an example.

    Attributes:
        step: number of the expert's steps before the state.
        steps: the agent's own, from its action to the end.
        reward: step reward of its action; None if its episode does not end worse than the
            expert's, and nothing is compared.
    """

    step: int
    steps: tuple[Step, ...]
    reward: float | None


@dataclass(frozen=True, slots=True)
class Contrasted:
    """An agent beside one trajectory of the expert.

    Attributes:
        own: the agent's episode from the start; empty if there is no room for a first reply.
        expert_rewards: reward of the expert's step t, of the steps that were compared.
    """

    own: tuple[Step, ...]
    deviations: tuple[Deviation, ...]
    expert_rewards: Mapping[int, float]
    episodes: int
    rollouts: int
    completion_tokens: int


def contrast_task(
    game: Game,
    *,
    first_observation: str,
    expert: Sequence[Step],
    mistakes: Collection[int] = (),
    options: Contrast,
    rewards: StepRewards,
    known: Mapping[int, float],
    reward_model: RewardModel | None = None,
) -> RolloutTask[Contrasted]:
    """Let the agent explore along one trajectory; a rollout task.

    Args:
        rewards: of the roll-outs; its limits are those of the agent's episodes, too.
        known: rewards of the expert's steps that were computed before.
    """
    explorer = _Explorer(game, first_observation, options, rewards)
    rewarder = _StepRewarder(explorer, expert, dict(known), reward_model)
    own: tuple[Step, ...] = ()
    suffix: tuple[Step, ...] = ()
    deviations: list[Deviation] = []
    for t, step in enumerate(expert):
        if not suffix:
            suffix = yield from explorer.play(expert[:t])
        if not suffix:  # the history leaves no room for a reply
            break
        own = own if t else suffix
        if suffix[0].key != step.key and t not in mistakes:
            reward = yield from rewarder.own_reward(t, suffix)
            deviations.append(Deviation(t, suffix, reward))
        follows = suffix[0].message == step.message
        suffix = suffix[1:] if follows else ()
    return Contrasted(
        own,
        tuple(deviations),
        rewarder.expert_rewards,
        explorer.episodes,
        rewarder.rollouts,
        explorer.completion_tokens + rewarder.completion_tokens,
    )


@dataclass(slots=True)
class _Explorer:
    """The agent, and the task that it plays."""

    game: Game
    first: str
    options: Contrast
    rewards: StepRewards
    episodes: int = 0
    completion_tokens: int = 0

    def play(self, before: Sequence[Step]) -> RolloutTask[tuple[Step, ...]]:
        """The agent's own steps from the state after some steps of the expert."""
        sampling = Sampling(self.options.temperature, self.rewards.max_tokens)
        agent = first_reply(seeded(sampling, *self.game.seeds, len(before)))
        steps, episode = yield from self.game.play_on(self.first, before, agent, max_steps=self.rewards.max_steps)
        self.episodes += 1
        self.completion_tokens += episode.completion_tokens
        return steps


@dataclass(slots=True)
class _StepRewarder:
    """Step rewards of the expert and of the agent."""

    explorer: _Explorer
    expert: Sequence[Step]
    expert_rewards: dict[int, float]
    model: RewardModel | None
    rollouts: int = 0
    completion_tokens: int = 0

    def own_reward(self, t: int, own: Sequence[Step]) -> RolloutTask[float | None]:
        """The reward of the agent's step, once the expert's is known; None if it ends no worse."""
        outcome = self.expert[-1].reward
        if own[-1].reward >= outcome:
            return None
        if t not in self.expert_rewards:
            last = t == len(self.expert) - 1
            self.expert_rewards[t] = outcome if last else (yield from self._reward(self.expert[: t + 1], "expert"))
        return (yield from self._reward([*self.expert[:t], own[0]], "own"))

    def _reward(self, steps: Sequence[Step], whose: str) -> RolloutTask[float]:
        explorer = self.explorer
        if self.model is not None and not explorer.rewards.is_over(steps):
            history = explorer.game.chat.history(explorer.first, steps[:-1])
            result: ScoreResult = yield value_request(history, steps[-1:], observes=self.model.observes)
            return result.q_values[0]
        found = yield from step_reward(
            explorer.game, explorer.first, steps, options=explorer.rewards, parts=(len(steps), whose)
        )
        self.rollouts += len(found.rollouts)
        self.completion_tokens += found.completion_tokens
        return found.mean
