"""State of an episode as an immutable, JSON-serialisable value."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from qnet.errors import EpisodeClosedError
from qnet.records import ThresholdActionRow
from qnet.types import History, HistoryWindow, Message


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Offer(_State):
    """The candidates that an agent was offered at one state.

    Attributes:
        at: number of messages in the history before the action.
        q_values: text of each candidate -> its Q; None if it was not scored.
        chosen: text of the chosen candidate.
        q_model: `name@version` of the Q model that guides this episode.
        policy: the policy that drew the candidates; "" if the agent sent its own.
        completion_tokens: tokens drawn for this step.
        calling: text of each candidate that calls tools -> the candidate as a message; empty if
            episodes are not recorded.
        counts: how often each text was drawn.
        asked: the Q model, alias or split that the request named; "" for the default.
        reason: why it was chosen.
        duration_ms: time of the step in this server.
        judge: the Q-values are a judge's.
        ranked: the Q-values are places among this step's candidates, and mean nothing elsewhere.
        window: what the Q model read in place of a history that is too long for it; None if it
            read the whole.
        threshold: the Q below which actions are taken; None where none is set.
        actions: those that were taken.
    """

    at: int
    q_values: Mapping[str, FiniteFloat | None]
    chosen: str
    q_model: str
    policy: str = ""
    completion_tokens: int = 0
    calling: Mapping[str, Message] = Field(default={}, exclude_if=lambda calling: not calling)
    counts: Mapping[str, int] = {}
    asked: str = ""
    reason: str = ""
    duration_ms: float = 0.0
    judge: bool = False
    ranked: bool = False
    window: HistoryWindow | None = Field(default=None, exclude_if=lambda window: window is None)

    threshold: FiniteFloat | None = Field(default=None, exclude_if=lambda bound: bound is None)
    actions: tuple[ThresholdActionRow, ...] = Field(default=(), exclude_if=lambda taken: not taken)

    @property
    def stopped(self) -> bool:
        """True if no candidate was answered."""
        return bool(self.actions) and self.actions[-1].outcome == "stopped"

    def merged_with(self, other: Self) -> Self:
        """Merge with a later offer for the same state."""
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
                "calling": {**self.calling, **other.calling},
                "counts": dict(Counter(self.counts) + Counter(other.counts)),
                "duration_ms": self.duration_ms + other.duration_ms,
                "actions": (*self.actions, *other.actions),
            }
        )


class Mark(_State):
    """Q of the chosen candidate at a state, which is identified by a hash; None if not scored."""

    state: str
    q_value: FiniteFloat | None
    q_model: str


class Outcome(_State):
    """Outcome of an episode.

    Attributes:
        terminated: True if the environment ended it, False if a step limit truncated it.
        action: the agent's last action; None if it was the chosen candidate.
        observation: the observation after the last action.
    """

    reward: FiniteFloat
    terminated: bool = True
    action: str | None = None
    observation: str = ""


class Episode(_State):
    """State of an episode.

    Attributes:
        steps: number of distinct states that were guided.
        last, before: the two latest of them.
        messages: the history at the last step; empty if episodes are not recorded.
        offers: one per step; empty if episodes are not recorded.
        broken: why it can no longer be recorded, or "".
        recorded: True once it is in a file.
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
        """Q of the action that led to this state; None if this Q model has not scored it.

        Values of different Q models are never compared, because their scales may differ. A state
        that is requested again is not its own predecessor.
        """
        state = digest(history)
        for mark in (self.last, self.before):
            if mark is not None and mark.state != state:
                return mark.q_value if mark.q_model == q_model else None
        return None

    def after(self, history: History, offer: Offer, *, keep: bool, unreadable: str = "") -> Self:
        """The episode with one more step, or with another offer for its latest state.

        Args:
            keep: keep the texts as well, to record them at the end.
            unreadable: why a record would not show what the policy saw, or "".

        Raises:
            EpisodeClosedError: the episode has ended.
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
            return {"offers": (*self.offers[:-1], self.offers[-1].merged_with(offer))}
        if self.steps and not _extends(history, self.messages):
            why = (
                f"the history of step {self.steps + 1} does not continue that of step {self.steps}"
            )
            return {"broken": why, "messages": (), "offers": ()}
        # Without the wire format, which may be large and is not recorded.
        plain = tuple(replace(message, wire=None) for message in history)
        return {"messages": plain, "offers": (*self.offers, offer)}

    def closed(self, outcome: Outcome) -> Self:
        """The episode with its outcome; idempotent for the same reward.

        Raises:
            EpisodeClosedError: it ended with another reward.
        """
        if self.outcome is None:
            return self.model_copy(update={"outcome": outcome})
        if self.outcome.reward != outcome.reward:
            raise EpisodeClosedError(
                f"episode {self.id!r} ended with a reward of {self.outcome.reward}, not "
                f"{outcome.reward}; an episode can end only once, so start another one"
            )
        return self

    def written(self) -> Self:
        """The episode marked as recorded, without its texts."""
        return self.model_copy(update={"recorded": True, "messages": (), "offers": ()})

    def require_open(self) -> None:
        """Refuse a step after the end.

        Raises:
            EpisodeClosedError: the episode has ended.
        """
        if self.outcome is not None:
            raise EpisodeClosedError(
                f"episode {self.id!r} has ended; use another episode_id for the next episode"
            )


def digest(history: History) -> str:
    """Hash of a state: the texts of its messages and their other content."""
    seen = [(message.key, *message.unread) for message in history]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def _extends(history: History, former: History) -> bool:
    """True if only an action and its observation were appended."""
    new = history[len(former) :]
    return history[: len(former)] == former and len(new) > 1 and new[0].role == "assistant"
