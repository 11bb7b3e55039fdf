"""Preference pairs: two continuations of one state, of which the first has the higher value.

groups, explore, collect ─▶ pairs ─┐
                         rro, ipr ─┴▶ PreferenceRow ─▶ train-dpo
"""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, model_validator

from qguide.qnet.chat_messages import message_key
from qguide.qnet.records import MessageRow, TaskRow, messages_of, rows_of
from qguide.qnet.types import History
from qguide.training.trajectory import Step, step_messages

Level = Literal["step", "suffix", "trajectory"]
"""One action against another, everything from a step to the end of an episode, or all of it."""

PairSource = Literal["group", "best-path", "outcome", "rising", "fixed", "contrast"]
"""Two candidates of a decision group; a step of a tree's best path and a sibling (StepQ); two
episodes of one task with different outcomes (ETO); the best and the worst of the draws of a step,
drawn until the reward rises or a fixed number of times (RRO); an expert's trajectory and an
agent's, as a whole or from the agent's mistake on (IPR)."""


class PreferenceRow(TaskRow):
    """One preference pair: `pairs`, `rro` and `ipr` write it, `train-dpo` reads it.

    Attributes:
        messages: the state, from the system message or the first observation to the last one.
        chosen: the better continuation: a reply, then observations (of one or more messages) and
            replies in turn. The last message is a reply. Observations are context, never scored.
        chosen_value: on the scale of its source, above `rejected_value`.
        depth: actions before the state.
        candidates: how many continuations the state had; of `rro`, the number of draws.
        mistakes: indices of the replies of `chosen` that must not be imitated, such as the expert's
            deliberate ones; no loss scores them.
    """

    version: Literal[1] = 1
    level: Level
    source: PairSource
    messages: Annotated[tuple[MessageRow, ...], Field(min_length=1)]
    chosen: Annotated[tuple[MessageRow, ...], Field(min_length=1)]
    rejected: Annotated[tuple[MessageRow, ...], Field(min_length=1)]
    chosen_value: FiniteFloat
    rejected_value: FiniteFloat
    depth: NonNegativeInt
    candidates: Annotated[int, Field(ge=2)] = 2
    mistakes: tuple[NonNegativeInt, ...] = ()

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        for name, rows in (("chosen", self.chosen), ("rejected", self.rejected)):
            replies = [row.role == "assistant" for row in rows]
            if not replies[0] or any(first and second for first, second in pairwise(replies)):
                roles = ", ".join(row.role for row in rows)
                raise ValueError(f"{name} has the roles {roles}; alternate between replies and observations")
            if not replies[-1]:
                raise ValueError(f"{name} ends with an observation, which is never scored; end it with a reply")
        if self.chosen_value <= self.rejected_value:
            raise ValueError(f"chosen_value {self.chosen_value} is not above rejected_value {self.rejected_value}")
        if self.level == "step" and len(self.chosen) + len(self.rejected) > 2:
            raise ValueError(
                f"level is 'step', but chosen has {len(self.chosen)} messages and rejected "
                f"{len(self.rejected)}; give one reply each"
            )
        key = message_key(self.chosen[0].to_message())
        if self.level != "trajectory" and key == message_key(self.rejected[0].to_message()):
            raise ValueError(f"chosen and rejected have the same action {key!r}; give two actions")
        scored = sum(row.role == "assistant" for row in self.chosen)
        if any(number >= scored for number in self.mistakes):
            raise ValueError(f"mistakes are {self.mistakes}, but chosen has {scored} replies")
        if len(set(self.mistakes)) == scored:
            raise ValueError(
                f"all {scored} replies of chosen are mistakes, so nothing is preferred; leave the pair out"
            )
        return self

    @property
    def gap(self) -> float:
        """Difference of the two values, above 0."""
        return self.chosen_value - self.rejected_value

    @property
    def history(self) -> History:
        """The state as a chat."""
        return messages_of(self.messages)


def scored_messages(steps: Sequence[Step]) -> History:
    """Replies and observations of these steps, up to the last reply: one side of a pair."""
    *before, last = steps
    return (*chain.from_iterable(map(step_messages, before)), last.message)


def preference_row(
    task: TaskRow,
    origin: tuple[Level, PairSource],
    *,
    state: tuple[MessageRow, ...],
    chosen: History,
    rejected: History,
    values: tuple[float, float],
    candidates: int,
    mistakes: Sequence[int] = (),
) -> PreferenceRow:
    """The row of a pair."""
    level, source = origin
    return PreferenceRow(
        task_id=task.task_id,
        kind=task.kind,
        environment=task.environment,
        level=level,
        source=source,
        messages=state,
        chosen=rows_of(chosen),
        rejected=rows_of(rejected),
        chosen_value=values[0],
        rejected_value=values[1],
        depth=sum(message.role == "assistant" for message in state),
        candidates=candidates,
        mistakes=tuple(mistakes),
    )
