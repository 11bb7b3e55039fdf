"""An agent beside an expert's trajectory: its pairs, and step rewards for later iterations (IPR).

collect ─▶ ipr ─▶ ContrastRow ─▶ PreferenceRow ─▶ train-dpo
            ▲         │
            └─────────┘ the expert's step rewards, in the next iteration
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeInt

from qguide.qnet.records import NonEmpty, Reward, TaskRow
from qguide.training.data.preferences import PreferenceRow
from qguide.training.trajectory import Step


class ContrastRow(TaskRow):
    """One explored trajectory: `ipr` writes it, and reads those of earlier iterations.

    Attributes:
        expert_sha256: hash of the expert's replies.
        expert_outcome: outcome reward of the expert's trajectory.
        expert_rewards: reward of each of its steps; null where no comparison needed it.
        own_outcome: outcome reward of the agent from the start; null if it could not reply.
        own_rewards: reward of the agent's action in each state; null where there is no comparison.
        deviations: number of states in which the agent took another action.
        pairs: preference pairs of both levels.
        source: name of the agent.
        seed: seed of the draws.
    """

    expert_sha256: NonEmpty
    expert_outcome: Reward
    expert_rewards: tuple[FiniteFloat | None, ...]
    own_outcome: Reward | None
    own_rewards: tuple[FiniteFloat | None, ...]
    deviations: NonNegativeInt
    pairs: tuple[PreferenceRow, ...]
    source: NonEmpty
    seed: int
    rollouts: NonNegativeInt = 0
    completion_tokens: Annotated[int, Field(ge=0)] = 0

    @property
    def known_rewards(self) -> dict[int, float]:
        """Rewards of the expert's steps, by number from 0."""
        return {t: reward for t, reward in enumerate(self.expert_rewards) if reward is not None}


def sha256_of_steps(steps: Sequence[Step]) -> str:
    """One hash over the replies of a trajectory."""
    return sha256("\x1f".join(step.action for step in steps).encode()).hexdigest()
