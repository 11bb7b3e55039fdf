"""An episode as a value: JSON can hold it, and each step makes a new one."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from pydantic import BaseModel, ConfigDict, FiniteFloat

from qnet.errors import EpisodeClosedError
from qnet.types import History, Message


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offer(_State):
    """What an agent was offered at one state.

    Attributes:
        at: messages of the history before the action.
        q_values: candidate's text -> its Q; None where none was read.
        chosen: the text that was answered.
        q_model: `name@version`, the arm that this episode has.
        policy: who drew the candidates; "" where the agent brought its own.
        completion_tokens: drawn for this step.
    """

    at: int
    q_values: Mapping[str, FiniteFloat | None]
    chosen: str
    q_model: str
    policy: str = ""
    completion_tokens: int = 0

    def again(self, other: Self) -> Self:
        """This offer and a later one for the same state."""
        return other.model_copy(
            update={
                "q_values": {
                    **self.q_values,
                    **{
                        text: self.q_values.get(text) if q is None else q
                        for text, q in other.q_values.items()
                    },
                },
                "completion_tokens": self.completion_tokens + other.completion_tokens,
            }
        )


class Mark(_State):
    """The Q of the choice at a state, known by its hash; None where none was read."""

    state: str
    q_value: FiniteFloat | None
    q_model: str


class Outcome(_State):
    """How an episode ended.

    Attributes:
        terminated: the environment ended it, not a limit of steps.
        action: what the agent did last; None if it was what was chosen for it.
        observation: what that brought.
    """

    reward: FiniteFloat
    terminated: bool = True
    action: str | None = None
    observation: str = ""


class Episode(_State):
    """What is known of an episode so far.

    Attributes:
        steps: different states that it was guided in.
        last, before: the two latest of them.
        messages: the history at the last step; empty where episodes are not recorded.
        offers: one per step; empty where episodes are not recorded.
        broken: why it can be no record any more, or "".
        recorded: it stands in a file.
    """

    id: str
    steps: int = 0
    last: Mark | None = None
    before: Mark | None = None
    messages: tuple[Message, ...] = ()
    offers: tuple[Offer, ...] = ()
    broken: str = ""
    outcome: Outcome | None = None
    recorded: bool = False

    def previous_q(self, history: History, *, q_model: str) -> float | None:
        """Q of the choice that led to this state; None if there was none by this Q model.

        Two Q models need not agree on what a value means, so theirs are never compared. A state
        that is asked for again is not its own predecessor.
        """
        state = digest(history)
        for mark in (self.last, self.before):
            if mark is not None and mark.state != state:
                return mark.q_value if mark.q_model == q_model else None
        return None

    def after(self, history: History, offer: Offer, *, keep: bool, unreadable: str = "") -> Self:
        """The episode with one more step, or with a state offered again.

        Args:
            keep: also hold the texts, to record them at the end.
            unreadable: why a record would not say what the policy saw, or "".

        Raises:
            EpisodeClosedError: it has its outcome.
        """
        self.require_open()
        mark = Mark(
            state=digest(history), q_value=offer.q_values[offer.chosen], q_model=offer.q_model
        )
        again = self.last is not None and self.last.state == mark.state
        moved = {
            "steps": self.steps if again else self.steps + 1,
            "before": self.before if again else self.last,
            "last": mark,
        }
        kept = self._kept(history, offer, unreadable) if keep else {}
        return self.model_copy(update=moved | kept)

    def _kept(self, history: History, offer: Offer, unreadable: str) -> dict[str, object]:
        if self.broken:
            return {}
        if unreadable:
            return {"broken": unreadable, "messages": (), "offers": ()}
        if self.offers and history == self.messages:
            return {"offers": (*self.offers[:-1], self.offers[-1].again(offer))}
        if self.steps and not _extends(history, self.messages):
            why = f"step {self.steps + 1} does not go on from step {self.steps}"
            return {"broken": why, "messages": (), "offers": ()}
        # As a Q model reads it: what else a turn had may be large, and is in no record.
        plain = tuple(replace(message, wire=None) for message in history)
        return {"messages": plain, "offers": (*self.offers, offer)}

    def closed(self, outcome: Outcome) -> Self:
        """The episode with its outcome; the same one again changes nothing.

        Raises:
            EpisodeClosedError: it ended with another reward.
        """
        if self.outcome is None:
            return self.model_copy(update={"outcome": outcome})
        if self.outcome.reward != outcome.reward:
            raise EpisodeClosedError(
                f"episode {self.id!r} ended with a reward of {self.outcome.reward}, not "
                f"{outcome.reward}; an episode ends once"
            )
        return self

    def written(self) -> Self:
        """The episode once it is in a file, without the texts."""
        return self.model_copy(update={"recorded": True, "messages": (), "offers": ()})

    def require_open(self) -> None:
        """Refuse a step after the end.

        Raises:
            EpisodeClosedError: it has its outcome.
        """
        if self.outcome is not None:
            raise EpisodeClosedError(
                f"episode {self.id!r} has ended; give the next episode another episode_id"
            )


def digest(history: History) -> str:
    """What a state is recognised by: what its messages say, and what else they show."""
    seen = [(message.key, *message.unread) for message in history]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def _extends(history: History, former: History) -> bool:
    """Whether an action and what it brought were added, and nothing was changed."""
    new = history[len(former) :]
    return history[: len(former)] == former and len(new) > 1 and new[0].role == "assistant"
