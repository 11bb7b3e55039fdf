"""Mistakes of an agent beside an expert's trajectory (IPR 3.3).

    the agent makes a mistake at step t if
    r(s_t, a_t) - r(s_t, a'_t) > tau   and   outcome of its episode < outcome of the expert's

a is the expert's action and a' the agent's in the same state; the agent plays on to the end.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Comparison:
    """The two actions of one state.

    Attributes:
        expert_reward, own_reward: step rewards of the expert's and of the agent's action.
        expert_outcome, own_outcome: outcome rewards of the two episodes.
    """

    expert_reward: float
    own_reward: float
    expert_outcome: float
    own_outcome: float

    def is_mistake(self, *, tau: float) -> bool:
        """True if the agent's action is worse by more than `tau`, and its episode ends worse."""
        worse = self.expert_reward - self.own_reward > tau
        return worse and self.own_outcome < self.expert_outcome
