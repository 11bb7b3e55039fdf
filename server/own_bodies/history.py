"""Validation of messages and candidates, and their conversion to `qnet`'s types."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Any, Final

from qguide.qnet.decision.selection import Prior, PriorBy, prior_of
from qguide.qnet.errors import HistoryTooLongError, InvalidCandidatesError, MalformedHistoryError
from qguide.qnet.turns import paced
from qguide.qnet.types import INSTRUCTING, History, Message, Role
from qguide.server.own_bodies.schemas import CandidateMessage

_NAMED_CALLS: Final = 5  # most tool calls that an error names


@dataclass(frozen=True, slots=True)
class TriedCandidates:
    """The candidates of a request."""

    messages: tuple[Message, ...]
    observations: tuple[History, ...] = ()  # the observation after each candidate; empty if they were not tried
    counts: tuple[int, ...] = ()  # how often each was drawn; empty if unknown
    logprobs: tuple[float, ...] = ()  # log-likelihood of each by its policy; empty if unknown
    # what they may call, in OpenAI's shape; empty if unknown
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    greedy: int | None = None  # index of the policy's greedy reply; None if unknown

    @property
    def drawn(self) -> bool:
        """True if it is known what their policy prefers."""
        return bool(self.counts or self.logprobs)

    def prior(self, by: PriorBy, *, greedy_weight: float = 0.0) -> Prior:
        """Their prior, from what is known.

        Args:
            by: its source if both counts and log-likelihoods are known.
        """
        if not (self.counts and self.logprobs):
            by = "likelihood" if self.logprobs else "votes"
        return prior_of(
            self.messages,
            by=by,
            counts=self.counts,
            logprobs=self.logprobs,
            greedy=self.greedy,
            greedy_weight=greedy_weight,
        )


def to_candidates(given: Sequence[str | CandidateMessage], *, most: int, most_bytes: int) -> TriedCandidates:
    """Convert the candidates of a request to assistant messages and their observations."""
    if not 1 <= len(given) <= most:
        raise InvalidCandidatesError(f"candidates has {len(given)} entries; send 1 to {most} (QGUIDE_MAX_CANDIDATES)")
    messages = [_to_message(candidate, index) for index, candidate in enumerate(given)]
    observations = [_to_observation(candidate) for candidate in given]
    texts = [m.text for m in (*messages, *chain.from_iterable(o or () for o in observations))]
    check_size("candidates", texts, most_bytes)
    seen: dict[tuple[Message, History | None], int] = {}
    for index, tried in enumerate(zip(messages, observations, strict=True)):
        if defect := _turn_defect(tried[0]):
            raise InvalidCandidatesError(f"candidates[{index}] {defect}")
        if tried in seen:
            raise InvalidCandidatesError(
                f"candidates[{seen[tried]}] and candidates[{index}] are equal; send each candidate once"
            )
        seen[tried] = index
    return TriedCandidates(tuple(messages), _checked(messages, observations))


def _to_observation(candidate: str | CandidateMessage) -> History | None:
    if isinstance(candidate, str) or candidate.observation is None:
        return None
    if isinstance(candidate.observation, str):
        return (Message("user", candidate.observation),)
    return tuple(message.to_message() for message in candidate.observation)


def _checked(messages: Sequence[Message], observations: Sequence[History | None]) -> tuple[History, ...]:
    """Check that the observations can follow their candidates; returns them."""
    tried = [observation for observation in observations if observation is not None]
    for index, (message, observation) in enumerate(zip(messages, observations, strict=True)):
        if observation is None:
            if tried:
                raise InvalidCandidatesError(
                    f"candidates[{index}] has no observation, but others have one; send one for each candidate or for "
                    "none"
                )
            continue
        roles = sorted({answer.role for answer in observation} - {"user", "tool"})
        if roles or not observation:
            raise InvalidCandidatesError(
                f"candidates[{index}].observation "
                + (f"has the role {roles[0]!r}" if roles else "is empty")
                + "; send a text, or messages with the roles 'tool' and 'user'"
            )
        try:
            check_readable((message, *observation))
        except MalformedHistoryError as error:
            raise InvalidCandidatesError(
                f"candidates[{index}] and its observation are malformed as messages: {error}"
            ) from error
    return tuple(tried)


def check_count(messages: Sequence[object], most: int) -> None:
    """Refuse an empty history, and one of more than `most` messages."""
    if len(messages) > most:
        raise HistoryTooLongError(
            f"messages has {len(messages):,} entries; this server takes {most:,}; shorten the history or raise "
            "QGUIDE_MAX_HISTORY_MESSAGES"
        )
    if not messages:
        raise MalformedHistoryError("messages is empty; send at least the task as a user message")


def check_readable(history: History) -> None:
    """Refuse empty messages, tool calls without results, and an assistant's message at the end."""
    for index, message in enumerate(paced(history)):
        if defect := _turn_defect(message):
            raise MalformedHistoryError(f"messages[{index}] ({message.role}) {defect}")
    _check_tool_results(history)
    spoken = _spoken(history)
    if not spoken or spoken[-1] == "assistant":
        raise MalformedHistoryError(
            f"the last message has the role {history[-1].role!r}; end with the observation that the agent has to answer"
        )


def check_order(history: History) -> None:
    """Refuse a history without a task first, or without an observation between two actions."""
    if _spoken(history)[0] != "user":
        raise MalformedHistoryError(
            f"the first message has the role {_spoken(history)[0]!r}; begin with the task as a user message"
        )
    for index, (former, message) in enumerate(pairwise(history)):
        if former.role == message.role == "assistant":
            raise MalformedHistoryError(
                f"messages[{index}] and messages[{index + 1}] are both the assistant's; send the observation between "
                "them"
            )


def _spoken(history: History) -> list[Role]:
    return [message.role for message in history if message.role not in INSTRUCTING]


def _turn_defect(message: Message) -> str | None:
    """The reason to refuse a message, or None; only a tool's message may be empty."""
    if message.tool_calls and message.role != "assistant":
        return "has tool_calls, which only an assistant message may have; remove them"
    if message.tool_call_id and message.role != "tool":
        return "has a tool_call_id, which only a tool message may have; remove it"
    return defect_of(message.text or ("nothing" if message.role == "tool" else ""))


def _check_tool_results(history: History) -> None:
    """Refuse a tool call that its result does not follow, and a result without its call."""
    waiting = Counter[str]()
    open_calls = 0
    for index, message in enumerate(paced(history)):
        if message.role == "tool":
            if not waiting[message.tool_call_id]:
                raise MalformedHistoryError(
                    f"messages[{index}] is the result of the tool call {message.tool_call_id!r}, but the assistant "
                    "message before it makes no such call, or the call has a result already; send one result after "
                    "each call"
                )
            waiting[message.tool_call_id] -= 1
            open_calls -= 1
        elif open_calls:
            break
        else:
            waiting = Counter(call.id for call in message.tool_calls)
            open_calls = len(message.tool_calls)
    if open_calls and history[-1].role != "assistant":
        named = ", ".join(map(repr, islice(+waiting, _NAMED_CALLS)))
        raise MalformedHistoryError(
            f"the tool calls {named} have no result; send one tool message for each, directly after the assistant "
            "message"
        )


def check_size(name: str, texts: Sequence[str], most_bytes: int) -> None:
    """Refuse texts that are too large, by their bytes, so that no time is spent tokenising them."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if size > most_bytes:
        raise HistoryTooLongError(
            f"{name} has {size:,} bytes of text; this server takes {most_bytes:,}; shorten it, or raise "
            "QGUIDE_MAX_TEXT_BYTES"
        )


def defect_of(text: str) -> str | None:
    """The reason to refuse a text, or None."""
    return None if text.strip() else "is empty; remove it"


def _to_message(candidate: str | CandidateMessage, index: int) -> Message:
    if isinstance(candidate, str):
        return Message("assistant", candidate)
    if candidate.role != "assistant":
        raise InvalidCandidatesError(
            f"candidates[{index}] has the role {candidate.role!r}; send candidates as assistant messages"
        )
    return candidate.to_message()
