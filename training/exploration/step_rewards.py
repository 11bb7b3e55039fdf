"""Step rewards by Monte Carlo: the mean outcome of roll-outs from a state (IPR 3.2, RRO 2).

    r(s_t, a_t) = 1/N * sum of the outcomes of N roll-outs from e_1:t, for t < n
    r(s_n, a_n) = outcome of e_n                                        (IPR, equations 4 and 5)

The roll-outs of a state are played in step (`rollouts.together`), so that its tokens are read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.types import Sampling
from qguide.training.rollouts.episode import Episode, first_reply, seeded
from qguide.training.rollouts.game import Game, new_steps
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.rollouts.together import play_together
from qguide.training.trajectory import Step


class StepRewards(BaseModel):
    """Options of the roll-outs that give a step its reward.

    Attributes:
        rollouts: number of roll-outs from each state (N in IPR, m in RRO).
        temperature: sampling temperature of the roll-outs.
        max_steps: actions after which an episode is cut off, those before the state included.
        max_tokens: maximum number of completion tokens in one reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rollouts: int = Field(default=5, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_steps: int = Field(default=40, ge=1)
    max_tokens: int = Field(default=128, ge=1)

    def is_over(self, steps: Sequence[Step]) -> bool:
        """True if nothing is left to play after these steps: their outcome is known."""
        return bool(steps) and (steps[-1].ended or len(steps) >= self.max_steps)


@dataclass(frozen=True, slots=True)
class RolloutEnd:
    """Outcome of a roll-out, and its length.

    Attributes:
        steps: those of the roll-out alone; 0 if there was nothing left to play.
        terminated: False if a limit cut it off.
    """

    outcome_reward: float
    steps: int
    terminated: bool


@dataclass(frozen=True, slots=True)
class StepReward:
    """Reward of the last step of a prefix.

    Attributes:
        rollouts: a single one, of no steps, if the prefix is a whole episode.
        completion_tokens: tokens generated for the roll-outs.
    """

    rollouts: tuple[RolloutEnd, ...]
    completion_tokens: int = 0

    @property
    def mean(self) -> float:
        """The step reward."""
        return fmean(rollout.outcome_reward for rollout in self.rollouts)


def step_reward(
    game: Game,
    first_observation: str,
    steps: Sequence[Step],
    *,
    options: StepRewards,
    parts: Sequence[object] = (),
) -> RolloutTask[StepReward]:
    """Roll out a policy from the state after some steps; a rollout task.

    The draws have the role "rollout", so a scorer other than the agent may answer them.

    Args:
        steps: as they were played; none for the reward of the task itself.
        parts: of the draws' seeds, beside the game's.
    """
    if options.is_over(steps):
        return StepReward((RolloutEnd(steps[-1].reward, 0, steps[-1].terminated),))
    sampling = Sampling(options.temperature, options.max_tokens)
    episodes: list[Episode] = yield from play_together(
        [
            game.play(
                first_reply(seeded(sampling, *game.seeds, *parts, number), role="rollout"),
                max_steps=options.max_steps,
                prefix=[step.message for step in steps],
            )
            for number in range(options.rollouts)
        ]
    )
    return StepReward(
        tuple(
            RolloutEnd(
                episode.reward,
                len(new_steps(episode, first_observation, steps)),
                episode.terminated,
            )
            for episode in episodes
        ),
        sum(episode.completion_tokens for episode in episodes),
    )
