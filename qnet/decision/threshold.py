"""Actions where the best Q of a step is below a threshold: refine, escalate, stop. Pure.

`refine` draws again from the policy, which is shown the earlier candidates and told that they were judged poor, with
the reason of a judge that has criteria. `escalate` draws from another policy. The new candidates are scored after the
true history, like the others, and the best of all is taken. `stop` takes none.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.chat_messages import text_of
from qguide.qnet.types import ActionOutcome, Candidate, History, Message, ThresholdAction, Verdict, spent_on
from qguide.qnet.work import NOTHING, TokenUsage, UpstreamCalls, total_of

_SHOWN_CHARACTERS: Final = 2_000
_BULLET: Final = "- "
_OPENING: Final = (
    "Note on the next turn. These proposals for it were judged by a value model, and all of them "
    "were judged poor, that is, unlikely to reach the goal:"
)
_NOTE: Final = """\
{opening}

{proposals}

Propose a better turn: take another way to the goal, repeat none of these proposals, and mention \
neither them nor this note. Answer in the same form as before."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Threshold for the best Q of a step, and the actions below it.

    Attributes:
        below: actions are taken if the best Q is below it, on the Q model's own scale.
        actions: tried in this order, until the best Q is not below.
        num_candidates: drawn by each of `refine` and `escalate`.
    """

    below: float
    actions: tuple[ThresholdAction, ...]
    num_candidates: int = 1


@dataclass(frozen=True, slots=True)
class ActionTaken:
    """One action of a step below its threshold.

    Attributes:
        best_q: of all candidates after it.
        spent: tokens of the draw, those of candidates that could not be scored included.
    """

    action: ThresholdAction
    outcome: ActionOutcome
    best_q: float
    candidates: tuple[int, ...] = ()
    spent: TokenUsage = NOTHING
    judged: UpstreamCalls | None = None


@dataclass(frozen=True, slots=True)
class BelowThreshold:
    """A step whose best Q was below the threshold.

    Attributes:
        best_q: of the step's first candidates.
    """

    below: float
    best_q: float
    taken: tuple[ActionTaken, ...]

    @property
    def stopped(self) -> bool:
        """True if no candidate may be taken."""
        return bool(self.taken) and self.taken[-1].outcome == "stopped"

    @property
    def warning(self) -> str:
        """The actions in words."""
        said = ", ".join(f"{one.action} ({one.outcome.replace('_', ' ')})" for one in self.taken)
        return f"the best Q, {self.best_q:.3g}, was below the threshold {self.below:g}: {said}"


class ThresholdActions:
    """The actions of a step that drew `own` candidates before: which is next, and what those before it have brought."""

    def __init__(self, threshold: Threshold, *, own: int) -> None:
        self.threshold = threshold
        self.own = own
        self._due = list(threshold.actions)
        self._taken: list[ActionTaken] = []
        self._first_q: float | None = None
        self._best_q = 0.0
        self._failures: list[str] = []

    def next(self, highest_q: Callable[[], float]) -> ThresholdAction | None:
        """The action to take now; None if the best Q is not below, or none is left."""
        self._best_q = highest_q()
        if self._first_q is None:
            self._first_q = self._best_q
        return self._due.pop(0) if self._due and self._best_q < self.threshold.below else None

    def add(
        self,
        action: ThresholdAction,
        drawn: Sequence[Candidate],
        *,
        judged: UpstreamCalls | None,
        first: int,
        best_q: float,
    ) -> None:
        """Note the candidates of an action, whose indices in the step begin at `first`, and the best Q with them."""
        raised = best_q >= self.threshold.below
        outcome: ActionOutcome = "raised" if raised else "still_below"
        own = tuple(range(first, first + len(drawn)))
        self._taken.append(ActionTaken(action, outcome, best_q, own, spent_on(drawn), judged))

    def fail(
        self, action: ThresholdAction, drawn: Sequence[Candidate], reason: str, *, judged: UpstreamCalls | None
    ) -> None:
        """Note an action that brought nothing; its candidates, if any, are left out."""
        self._taken.append(ActionTaken(action, "failed", self._best_q, spent=spent_on(drawn), judged=judged))
        self._failures.append(f"{action} failed: {reason}")

    def stop(self) -> None:
        """Note that no candidate may be taken."""
        self._taken.append(ActionTaken("stop", "stopped", self._best_q))

    @property
    def spent(self) -> TokenUsage:
        """Tokens of all draws."""
        return total_of([taken.spent for taken in self._taken])

    @property
    def result(self) -> BelowThreshold | None:
        """All that was done; None if nothing was."""
        if not self._taken or self._first_q is None:
            return None
        return BelowThreshold(self.threshold.below, self._first_q, tuple(self._taken))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The actions in words, and why they failed."""
        return (self.result.warning, *self._failures) if self.result else ()


def with_note(history: History, candidates: Sequence[Message], verdicts: Mapping[Message, Verdict]) -> History:
    """The history for `refine`: it ends with the earlier candidates, and says they are poor.

    The note goes to the end of the last user's message, because many chat templates refuse two of
    them in a row; behind a tool's result it is a message of its own. A text of the assistant at the
    end, which the candidates continue, stays last.
    """
    proposals = []
    for message in dict.fromkeys(candidates):
        verdict = verdicts.get(message)
        because = f"; the reason: {_quoted(verdict.reason)}" if verdict and verdict.reason else ""
        proposals.append(_BULLET + _quoted(message.text) + because)
    note = _NOTE.format(opening=_OPENING, proposals="\n".join(proposals))
    begun = history[-1:] if history[-1].role == "assistant" else ()
    before = history[: len(history) - len(begun)]
    if not before or before[-1].role != "user":
        return (*before, Message("user", note), *begun)
    return (*before[:-1], _extended(before[-1], note), *begun)


def noted_proposals(text: str) -> int:
    """Number of proposals that a note in the text tells of; 0 without a note."""
    _, found, behind = text.rpartition(_OPENING)
    return sum(line.startswith(_BULLET) for line in behind.splitlines()) if found else 0


def _quoted(text: str) -> str:
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} …"
    return json.dumps(short, ensure_ascii=False)


def _extended(message: Message, note: str) -> Message:
    """The message with the note behind its text, whatever other parts it has."""
    content = (message.wire or {}).get("content")
    if message.wire is None or not isinstance(content, list):
        text = f"{message.content}\n\n{note}"
        wire = None if message.wire is None else {**message.wire, "content": text}
        return replace(message, content=text, wire=wire)
    parts = [*content, {"type": "text", "text": note}]
    return replace(message, content=text_of(parts), wire={**message.wire, "content": parts})
