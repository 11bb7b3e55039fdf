"""From the messages of a request to a history that makes sense."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from qnet.errors import (
    HistoryTooLongError,
    InvalidCandidatesError,
    MalformedHistoryError,
)
from qnet.types import History, Message, Role
from server.messages.schemas import CandidateMessage, ChatMessage

INSTRUCTING: Final = ("system", "developer")
"""Roles allowed at any position; they do not take part in turn order."""


def to_history(messages: Sequence[ChatMessage], *, most: int, most_bytes: int) -> History:
    """The history of a request that a Q model has to read.

    Raises:
        HistoryTooLongError: more messages than `most`, or more text than `most_bytes`.
        MalformedHistoryError: no message, an empty or broken one, the agent speaking twice in a
            row or last or first, or a tool call without its result.
    """
    check_count(messages, most)
    history = tuple(message.to_message() for message in messages)
    check_size("messages", [message.text for message in history], most_bytes)
    check_readable(history)
    _check_order(history)
    return history


@dataclass(frozen=True, slots=True)
class TriedCandidates:
    """The candidates of a request.

    Attributes:
        observations: what trying each one answered; empty where nothing was tried.
    """

    messages: tuple[Message, ...]
    observations: tuple[History, ...] = ()


def to_candidates(
    given: Sequence[str | CandidateMessage], *, most: int, most_bytes: int
) -> TriedCandidates:
    """The candidates of a request, as the assistant's messages, and what they were answered.

    Raises:
        HistoryTooLongError: together more text than `most_bytes`.
        InvalidCandidatesError: none or too many, an empty or broken one, a repeated one, one that
            is not the assistant's, or one without an observation beside others that have one.
    """
    if not 1 <= len(given) <= most:
        raise InvalidCandidatesError(f"{len(given)} candidates; give 1 to {most}")
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
                f"candidates[{seen[tried]}] and candidates[{index}] are equal; send each once"
            )
        seen[tried] = index
    return TriedCandidates(tuple(messages), _checked(messages, observations))


def _to_observation(candidate: str | CandidateMessage) -> History | None:
    if isinstance(candidate, str) or candidate.observation is None:
        return None
    if isinstance(candidate.observation, str):
        return (Message("user", candidate.observation),)
    return tuple(message.to_message() for message in candidate.observation)


def _checked(
    messages: Sequence[Message], observations: Sequence[History | None]
) -> tuple[History, ...]:
    """The observations, if they can follow their candidates."""
    tried = [observation for observation in observations if observation is not None]
    for index, (message, observation) in enumerate(zip(messages, observations, strict=True)):
        if observation is None:
            if tried:
                raise InvalidCandidatesError(
                    f"candidates[{index}] has no observation, but others have one; give one to "
                    "each candidate or to none"
                )
            continue
        roles = sorted({answer.role for answer in observation} - {"user", "tool"})
        if roles or not observation:
            raise InvalidCandidatesError(
                f"candidates[{index}].observation "
                + (f"has the role {roles[0]!r}" if roles else "is empty")
                + "; give a text, or messages of the roles 'tool' and 'user'"
            )
        try:
            check_readable((message, *observation))
        except MalformedHistoryError as error:
            raise InvalidCandidatesError(
                f"candidates[{index}] and its observation, as messages of their own: {error}"
            ) from error
    return tuple(tried)


def to_documents(texts: Sequence[str], *, most: int, most_bytes: int) -> tuple[Message, ...]:
    """The documents of a request as candidates; unlike those, they may repeat.

    Raises:
        HistoryTooLongError: together more text than `most_bytes`.
        InvalidCandidatesError: none or too many, or an empty or broken one.
    """
    if not 1 <= len(texts) <= most:
        raise InvalidCandidatesError(f"{len(texts)} documents; give 1 to {most}")
    check_size("documents", texts, most_bytes)
    for index, text in enumerate(texts):
        if defect := _defect(text):
            raise InvalidCandidatesError(f"documents[{index}] {defect}")
    return tuple(Message("assistant", text) for text in texts)


def check_count(messages: Sequence[object], most: int) -> None:
    """Refuse an empty history, and one of more than `most` messages."""
    if len(messages) > most:
        raise HistoryTooLongError(
            f"messages has {len(messages):,} turns; this server takes {most:,}; shorten the "
            "history or raise QGUIDE_MAX_HISTORY_MESSAGES"
        )
    if not messages:
        raise MalformedHistoryError("messages is empty; give at least the task as a user message")


def check_readable(history: History) -> None:
    """Every turn says something whole, calls have results, and the agent is asked."""
    for index, message in enumerate(history):
        if defect := _turn_defect(message):
            raise MalformedHistoryError(f"messages[{index}] ({message.role}) {defect}")
    _check_tool_results(history)
    spoken = _spoken(history)
    if not spoken or spoken[-1] == "assistant":
        raise MalformedHistoryError(
            f"the last message is the {history[-1].role}'s; end with the observation that the "
            "agent has to answer"
        )


def _check_order(history: History) -> None:
    """The task comes first, and an observation between any two actions."""
    if _spoken(history)[0] != "user":
        raise MalformedHistoryError("the first turn is not the user's; begin with the task")
    for index, (former, message) in enumerate(pairwise(history)):
        if former.role == message.role == "assistant":
            raise MalformedHistoryError(
                f"messages[{index}] and messages[{index + 1}] are both the assistant's; put the "
                "observation between them"
            )


def _spoken(history: History) -> list[Role]:
    """Who speaks, but for those to whom nobody answers."""
    return [message.role for message in history if message.role not in INSTRUCTING]


def _turn_defect(message: Message) -> str | None:
    """What keeps a turn from being said; a tool may have nothing to say."""
    if message.tool_calls and message.role != "assistant":
        return "has tool calls; those are the assistant's"
    if message.tool_call_id and message.role != "tool":
        return "has a tool_call_id; those are the tools'"
    return _defect(message.text or ("nothing" if message.role == "tool" else ""))


def _check_tool_results(history: History) -> None:
    """Every call is followed by its result, and every result follows its call."""
    waiting: list[str] = []
    for index, message in enumerate(history):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise MalformedHistoryError(
                    f"messages[{index}] is the result of the tool call {message.tool_call_id!r}, "
                    "which the assistant's turn before it does not make or which has its result; "
                    "send one result for each call, after it"
                )
            waiting.remove(message.tool_call_id)
        elif waiting:
            break
        else:
            waiting = [call.id for call in message.tool_calls]
    if waiting and history[-1].role != "assistant":
        raise MalformedHistoryError(
            f"the tool calls {', '.join(map(repr, waiting))} have no result; send a tool message "
            "for each call, straight after it"
        )


def check_size(name: str, texts: Sequence[str], most_bytes: int) -> None:
    """Refuse by its bytes what would keep the device busy with counting its tokens."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if size > most_bytes:
        raise HistoryTooLongError(
            f"{name} has {size:,} bytes of text; this server takes {most_bytes:,}; shorten it or "
            "raise QGUIDE_MAX_TEXT_BYTES"
        )


def _defect(text: str) -> str | None:
    """What keeps a text from being said, and the remedy."""
    return None if text.strip() else "is empty; remove it"


def _to_message(candidate: str | CandidateMessage, index: int) -> Message:
    if isinstance(candidate, str):
        return Message("assistant", candidate)
    if candidate.role != "assistant":
        raise InvalidCandidatesError(
            f"candidates[{index}] has the role {candidate.role!r}; a candidate is the assistant's"
        )
    return candidate.to_message()
