"""From the messages of a request to a history that makes sense."""

from collections.abc import Sequence

from qnet.errors import HistoryTooLongError, InvalidCandidatesError, MalformedHistoryError
from qnet.types import History, Message
from server.schemas import ChatMessage

MAX_TEXT_BYTES = 1_000_000
"""A million tokens have more bytes than that; what has fewer is quickly counted exactly."""


def to_history(
    messages: Sequence[ChatMessage], *, most: int, most_bytes: int = MAX_TEXT_BYTES
) -> History:
    """The history of a request.

    Raises:
        HistoryTooLongError: more messages than `most`, or more text than `most_bytes`.
        MalformedHistoryError: no message, an empty or broken one, the agent speaking twice in a
            row or last or first, or a system message that is not the first.
    """
    if len(messages) > most:
        raise HistoryTooLongError(
            f"messages has {len(messages):,} turns; this server takes {most:,}; shorten the "
            "history or raise QGUIDE_MAX_HISTORY_MESSAGES"
        )
    _check_size("messages", [message.content for message in messages], most_bytes)
    if not messages:
        raise MalformedHistoryError("messages is empty; give at least the task as a user message")
    for index, message in enumerate(messages):
        if defect := _defect(message.content):
            raise MalformedHistoryError(f"messages[{index}] ({message.role}) {defect}")
        if message.role == "system" and index > 0:
            raise MalformedHistoryError(f"messages[{index}] is a system message; it comes first")
        if index and message.role == messages[index - 1].role == "assistant":
            raise MalformedHistoryError(
                f"messages[{index - 1}] and messages[{index}] are both the assistant's; put the "
                "observation between them"
            )
    if next((m.role for m in messages if m.role != "system"), "user") != "user":
        raise MalformedHistoryError("the first turn is not the user's; begin with the task")
    if messages[-1].role in ("assistant", "system"):
        raise MalformedHistoryError(
            f"the last message is the {messages[-1].role}'s; end with the observation that the "
            "agent has to answer"
        )
    return tuple(message.to_message() for message in messages)


def to_candidates(
    given: Sequence[str | ChatMessage], *, most: int, most_bytes: int = MAX_TEXT_BYTES
) -> tuple[Message, ...]:
    """The candidates of a request, as the assistant's messages.

    Raises:
        HistoryTooLongError: together more text than `most_bytes`.
        InvalidCandidatesError: none or too many, an empty or broken one, a repeated one, or one
            that is not the assistant's.
    """
    if not 1 <= len(given) <= most:
        raise InvalidCandidatesError(f"{len(given)} candidates; give 1 to {most}")
    texts = [one if isinstance(one, str) else one.content for one in given]
    _check_size("candidates", texts, most_bytes)
    seen: dict[Message, int] = {}
    for index, candidate in enumerate(given):
        message = _to_message(candidate, index)
        if defect := _defect(message.content):
            raise InvalidCandidatesError(f"candidates[{index}] {defect}")
        if message in seen:
            raise InvalidCandidatesError(
                f"candidates[{seen[message]}] and candidates[{index}] are equal; send each once"
            )
        seen[message] = index
    return tuple(seen)


def _check_size(name: str, texts: Sequence[str], most_bytes: int) -> None:
    """Refuse by its bytes what would keep the device busy with counting its tokens."""
    size = sum(len(text.encode(errors="replace")) for text in texts)
    if size > most_bytes:
        raise HistoryTooLongError(
            f"{name} has {size:,} bytes of text; this server takes {most_bytes:,}; shorten it or "
            "raise QGUIDE_MAX_TEXT_BYTES"
        )


def _defect(text: str) -> str | None:
    """What keeps a text from being said, and the remedy; JSON can spell half a character."""
    if not text.strip():
        return "is empty; remove it"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds half a character (a lone surrogate) at {error.start}; send whole ones"
    return None


def _to_message(candidate: str | ChatMessage, index: int) -> Message:
    if isinstance(candidate, str):
        return Message("assistant", candidate)
    if candidate.role != "assistant":
        raise InvalidCandidatesError(
            f"candidates[{index}] has the role {candidate.role!r}; a candidate is the assistant's"
        )
    return candidate.to_message()
