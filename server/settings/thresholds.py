"""Settings of the actions that are taken where the best Q of a step is below a threshold."""

from typing import Self

from pydantic import BaseModel, Field, model_validator

from qguide.qnet.types import ThresholdAction


class ThresholdSettings(BaseModel, frozen=True, extra="forbid"):
    """Actions where the best Q of a step is below a threshold.

    Attributes:
        below: actions are taken if the best Q of a step is below it. It is on the Q model's own scale; `qguide report`
            shows which outcomes its values had.
        actions: tried in this order until the best Q is not below: `refine` draws again from the policy, which is told
            that the candidates so far were found poor; `escalate` draws from another policy; `stop` answers with an
            error.
        policy: the upstream that `escalate` draws from.
        num_candidates: number of candidates that each of `refine` and `escalate` draws.
    """

    below: float = Field(allow_inf_nan=False)
    actions: tuple[ThresholdAction, ...] = Field(min_length=1)
    policy: str = ""
    num_candidates: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _actions_make_sense(self) -> Self:
        if len(set(self.actions)) < len(self.actions):
            raise ValueError("actions names one of them twice; name each once")
        if "stop" in self.actions[:-1]:
            raise ValueError("actions has something behind 'stop'; put 'stop' last")
        if ("escalate" in self.actions) != bool(self.policy):
            raise ValueError(
                "'escalate' in actions and policy belong together; name the upstream to draw from"
                if "escalate" in self.actions
                else "policy is only for 'escalate'; add it to actions, or remove policy"
            )
        return self
