"""State of an episode as an immutable, JSON-serialisable value of constant size.

The texts of an episode are no part of its state: each step appends one record of what it added, and
`read_transcript` puts the records together when the episode ends. The state has their number, size and hash, so that a
step costs the same however many there were before it. A message is recorded as it was when the agent acted on it.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Literal, Self

from pydantic import BaseModel, Field, FiniteFloat

from qguide.qnet.continuation import KnownState, digest
from qguide.qnet.errors import EpisodeClosedError
from qguide.qnet.records import ThresholdActionRow
from qguide.qnet.types import History, HistoryWindow, Message, Verdict
from qguide.qnet.work import sum_of_known
from qguide.server.episodes.learning_part import LearningArm, Shadowed, ShadowTally


class _State(BaseModel, frozen=True, extra="forbid"):
    def to_json(self) -> bytes:
        """The state without what is as it is by default."""
        return self.model_dump_json(exclude_defaults=True).encode()


class Offer(_State):
    """The candidates that an agent was offered at one state."""

    at: int = 0  # number of messages in the record before the action
    q_values: Mapping[str, FiniteFloat | None]  # text of each candidate -> its Q; None if it was not scored
    chosen: str
    q_model: str  # `name@version` of the Q model that guides this episode
    policy: str = ""  # the policy that drew the candidates; "" if the agent sent its own
    drawn_by: str = ""  # the policy that drew the chosen one, where several drew; else ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: FiniteFloat | None = None  # None if it is not known
    # text of each candidate that calls tools -> the candidate as a message; empty if episodes are not recorded
    calling: Mapping[str, Message] = {}
    counts: Mapping[str, int] = {}
    verdicts: Mapping[str, Verdict] = {}
    greedy: str = ""  # text of the policy's greedy reply; "" if that is unknown
    asked: str = ""  # the Q model, alias or split that the request named; "" for the default
    reason: str = ""
    tau: FiniteFloat | None = None  # temperature of Q in the posterior that chose; None without one
    duration_ms: float = 0.0
    judge: bool = False
    ranked: bool = False  # the Q-values are places among this step's candidates, and mean nothing elsewhere
    # what the Q model read in place of a history that is too long for it; None if it read the whole
    window: HistoryWindow | None = None

    threshold: FiniteFloat | None = None  # the Q below which actions are taken; None where none is set
    actions: tuple[ThresholdActionRow, ...] = ()
    out_of_domain: bool | None = None  # the state was outside the Q model's domain; None if that was not asked
    shadow: str | None = None  # `name@version` of the Q model's shadow; "" for none, None in a state of before
    arm: LearningArm | None = None
    # probability of this choice among these candidates, given whether the step explored; None without learning
    propensity: FiniteFloat | None = None
    shadowed: Shadowed | None = None
    # the episode's outcome if it had ended before this step; None if the agent does not say it
    earned: FiniteFloat | None = None

    @property
    def stopped(self) -> bool:
        """True if no candidate was answered."""
        return bool(self.actions) and self.actions[-1].outcome == "stopped"


class StepRecord(_State):
    """Addition of a step to the record of its episode."""

    # the latest action and what followed it; none for another offer at the same state
    messages: tuple[Message, ...] = ()
    offer: Offer


class ScoredState(_State):
    """State of a step, by its hash, and the Q of the candidate chosen there; None if it was not scored."""

    state: str
    q_value: FiniteFloat | None
    q_model: str


class Outcome(_State):
    """Outcome of an episode."""

    reward: FiniteFloat
    terminated: bool = True  # True if the environment ended it, False if a step limit truncated it
    # who said so: the agent's own request for it, a header of a step, or a rule of the operator
    by: Literal["agent", "header", "rule"] = "agent"
    action: str | None = None  # the agent's last action; None if it was the chosen candidate
    observation: str = ""


class ServedEpisode(_State):
    """State of an episode."""

    id: str
    # the id under which it is recorded, made up at its first step. Not the caller's, which may say more than the caller
    # wants to be written, and may come again.
    uid: str = Field(default_factory=lambda: secrets.token_hex(8))
    steps: int = 0  # number of distinct states that were guided
    outside: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    last: ScoredState | None = None
    before: ScoredState | None = None
    records: int = 0  # number of step records; 0 if episodes are not recorded
    record_bytes: int = 0
    chain: str = ""  # hash of them all, in order; "" for none
    messages: int = 0  # number of messages in them all
    known: KnownState = KnownState()  # at the last record
    broken: str = ""  # why it can no longer be recorded, or ""
    outcome: Outcome | None = None
    recorded: bool = False
    arm: LearningArm | None = None
    shadow: ShadowTally | None = None
    policies: Mapping[str, int] = {}  # number of steps whose action each policy drew, where several drew
    tools: bool = False  # its steps have tools

    def previous_q(self, history: History, *, q_model: str) -> float | None:
        """Q of the action that led to this state; None if this Q model has not scored it.

        Values of different Q models are never compared, because their scales may differ. A state that is requested
        again is not its own predecessor.
        """
        state = digest(history)
        for known in (self.last, self.before):
            if known is not None and known.state != state:
                return known.q_value if known.q_model == q_model else None
        return None

    def with_tools(self, history: History, *, tools: bool) -> Self | None:
        """The episode before a step with tools or without; None if that is no step of it.

        Agents ask for plans, titles and summaries under the name of their session, too: without the tools of their
        steps, and not in continuation of these. What was asked so before the first step with tools is forgotten.
        """
        if not self.steps or tools == self.tools or self._continued_by(history, exactly=not tools):
            return self.model_copy(update={"tools": self.tools or tools})
        if not tools:
            return None
        return self._without_records(steps=0, outside=0, before=None, last=None, broken="", tools=True)

    def after(self, history: History, offer: Offer, *, keep: bool, unreadable: str = "") -> "EpisodeChange":
        """The episode with one more step, or with another offer for its latest state."""
        self.require_open()
        known = KnownState.of(history, offer.chosen)
        latest = ScoredState(state=known.state, q_value=offer.q_values[offer.chosen], q_model=offer.q_model)
        again = self.last is not None and self.last.state == latest.state
        moved = self.model_copy(
            update={
                "steps": self.steps if again else self.steps + 1,
                "outside": self.outside + (offer.out_of_domain is True and not again),
                "prompt_tokens": self.prompt_tokens + offer.prompt_tokens,
                "completion_tokens": self.completion_tokens + offer.completion_tokens,
                "cost": sum_of_known([self.cost, offer.cost]),
                "before": self.before if again else self.last,
                "last": latest,
                "arm": self.arm if self.steps else offer.arm,
                **({} if again else self._tallies_with(offer)),
            }
        )
        if not keep or self.broken:
            return EpisodeChange(moved)
        begins = self.known.news(history) if self.steps else 0
        if not unreadable and begins is None:
            unreadable = (
                f"the history of step {self.steps + 1} does not continue that of step {self.steps}: it has "
                f"{known.actions} actions of the agent, and that one had {self.known.actions}"
            )
        if unreadable:
            return EpisodeChange(moved._without_records(broken=unreadable))
        return moved._recorded(history[begins:], offer, known)

    def _tallies_with(self, offer: Offer) -> dict[str, object]:
        one, name = offer.shadowed, offer.drawn_by
        return {
            "shadow": ShadowTally.of(one).plus(self.shadow) if one else self.shadow,
            "policies": {**self.policies, name: self.policies.get(name, 0) + 1} if name else self.policies,
        }

    def _recorded(self, new: History, offer: Offer, known: KnownState) -> "EpisodeChange":
        messages = self.messages + len(new)
        # Without the wire format, which may be large and is not recorded.
        plain = tuple(replace(message, wire=None) for message in new)
        row = StepRecord(messages=plain, offer=offer.model_copy(update={"at": messages})).to_json()
        longer = {
            "records": self.records + 1,
            "record_bytes": self.record_bytes + len(row),
            "chain": chained(self.chain, [row]),
            "messages": messages,
            "known": known,
        }
        return EpisodeChange(self.model_copy(update=longer), row)

    def _continued_by(self, history: History, *, exactly: bool) -> bool:
        """True if a history continues the record, word by word if `exactly`; also where nothing is recorded."""
        if self.broken or not self.records:
            return not self.broken
        begins = self.known.news(history)
        return begins is not None and (not exactly or self.known.is_state_of(history[:begins]))

    def _without_records(self, **more: object) -> Self:
        none = {"records": 0, "record_bytes": 0, "chain": "", "messages": 0, "known": KnownState()}
        return self.model_copy(update=none | more)

    def closed(self, outcome: Outcome) -> Self:
        """The episode with its outcome; idempotent for the same reward."""
        if self.outcome is None:
            return self.model_copy(update={"outcome": outcome})
        if self.outcome.reward != outcome.reward:
            raise EpisodeClosedError(
                f"episode {self.id!r} ended with a reward of {self.outcome.reward}, not {outcome.reward}; an episode "
                "can end only once, so start another one"
            )
        return self

    def written(self) -> Self:
        """The episode marked as recorded, without its step records."""
        return self._without_records(recorded=True)

    def require_open(self, outcome: float | None = None) -> None:
        """Refuse a step after the end.

        An agent does not know of a rule that has ended its episode, so its further steps pass; so does the repetition
        of the step that brought the outcome.
        """
        if self.outcome is None:
            return
        ruled = outcome is None and self.outcome.by == "rule"
        repeated = self.outcome.by == "header" and outcome == self.outcome.reward
        if not (ruled or repeated):
            raise EpisodeClosedError(f"episode {self.id!r} has ended; use another episode_id for the next episode")

    def fullness(self, *, max_bytes: int, max_steps: int) -> str:
        """Reason why no record can be kept of another step; "" where one can. The last step may exceed the bytes."""
        if self.records < max_steps and self.record_bytes < max_bytes:
            return ""
        return (
            f"episode {self.id!r} has {self.records:,} steps of {self.record_bytes:,} bytes; this server keeps at most "
            f"{max_steps:,} steps (QGUIDE_EPISODE_MAX_STEPS) and {max_bytes:,} bytes (QGUIDE_EPISODE_MAX_BYTES) of an "
            "episode; report its outcome and use another episode_id for what follows"
        )


@dataclass(frozen=True, slots=True)
class EpisodeChange:
    """The new state of an episode."""

    episode: ServedEpisode
    # JSON of a `StepRecord` to append to its records; None appends nothing. A state without records drops those that
    # there were.
    record: bytes | None = None


def chained(chain: str, records: Iterable[bytes]) -> str:
    """Hash of a chain of records and of those that follow it."""
    for record in records:
        chain = hashlib.sha256(chain.encode() + record).hexdigest()
    return chain


@dataclass(frozen=True, slots=True)
class Transcript:
    """The texts of an episode."""

    messages: History = ()  # each as it was when the agent acted on it
    offers: tuple[Offer, ...] = ()  # one for each state

    @property
    def steps(self) -> list[tuple[int, Offer]]:
        """Each offer with the depth of the action after it, from 1."""
        replies = [0, *accumulate(message.role == "assistant" for message in self.messages)]
        return [(replies[offer.at] + 1, offer) for offer in self.offers]


def read_transcript(rows: Iterable[bytes]) -> Transcript:
    """Put step records together; records of one state become one offer."""
    messages: list[Message] = []
    offers: list[Offer] = []
    for row in rows:
        record = StepRecord.model_validate_json(row)
        messages += record.messages
        offers.append(record.offer)
    # The record only grows, so its length tells the states apart.
    states = groupby(offers, key=lambda offer: offer.at)
    return Transcript(tuple(messages), tuple(merged(list(state)) for _, state in states))


def merged(offers: Sequence[Offer]) -> Offer:
    """Merge the offers of one state, oldest first; the last one's choice counts."""
    if len(offers) == 1:
        return offers[0]
    q_values: dict[str, float | None] = {}
    calling: dict[str, Message] = {}
    counts = Counter[str]()
    for offer in offers:
        for text, q in offer.q_values.items():
            if q is not None or text not in q_values:
                q_values[text] = q
        calling |= offer.calling
        counts.update(offer.counts)
    told = [offer.earned for offer in offers if offer.earned is not None]
    return offers[-1].model_copy(
        update={
            "q_values": q_values,
            "completion_tokens": sum(offer.completion_tokens for offer in offers),
            "calling": calling,
            "earned": told[-1] if told else None,
            "counts": dict(counts),
            "duration_ms": sum(offer.duration_ms for offer in offers),
            "actions": tuple(action for offer in offers for action in offer.actions),
        }
    )
