"""Rules of the operator by which an episode ends, as a setting."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class OutcomeRule(BaseModel):
    """A condition on a step that ends its episode, and the outcome; the first that holds counts.

    Attributes:
        where: what is read: `last_tool_result` is the results behind the policy's last reply,
            `last_message` the last message, whatever its role. `exit_code` (success is 0) and
            `test_report` (the share of tests that passed) are read from the newest result or
            user's message that has one.
        contains: text that must stand there.
        lacks: text that must not stand there.
        outcome: the outcome, 0 to 1; `exit_code` and `test_report` have their own.
        final: the rule holds only if the step's reply calls no tool although the request has
            tools, so that the agent is at its end; always so of `exit_code` and `test_report`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: Literal["last_tool_result", "last_message", "exit_code", "test_report"]
    contains: str = ""
    lacks: str = ""
    outcome: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    final: bool = False

    @property
    def reads_outcome(self) -> bool:
        """True if the outcome is read from the text."""
        return self.where in ("exit_code", "test_report")

    @property
    def greatest(self) -> float:
        """The greatest outcome that it can give."""
        return 1.0 if self.reads_outcome else self.outcome or 0.0

    @property
    def only_at_end(self) -> bool:
        """True if it holds only of an agent's final reply."""
        return self.final or self.reads_outcome

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.reads_outcome:
            if self.contains or self.lacks or self.outcome is not None:
                raise ValueError(
                    f"{self.where} reads its outcome itself; leave contains, lacks and outcome out"
                )
        elif self.outcome is None:
            raise ValueError(f"{self.where} needs an outcome; give one from 0 to 1")
        elif not (self.contains or self.lacks or self.final):
            raise ValueError(
                "neither contains nor lacks is given, so every step would end its episode; give "
                'one of them, or "final": true'
            )
        return self
