"""Histories of chat completions: what a Q model cannot read is still an upstream's to answer."""

from collections.abc import Sequence

from qnet.errors import MalformedHistoryError
from qnet.types import History
from server.chat.schemas import ChatTurn
from server.messages.history import check_count, check_readable, check_size
from server.messages.schemas import text_in


def to_chat_history(
    turns: Sequence[ChatTurn], *, most: int, most_bytes: int
) -> tuple[History, MalformedHistoryError | None]:
    """The history of a conversation, and what keeps a Q model from reading it.

    An upstream may read what a Q model does not, and chats do not begin with a task: who speaks
    first and how often in a row is nobody's fault here.

    Raises:
        HistoryTooLongError: more messages than `most`, or more text than `most_bytes`.
        MalformedHistoryError: there is no message.
    """
    check_count(turns, most)
    history = tuple(turn.to_message() for turn in turns)
    check_size("messages", [message.text for message in history], most_bytes)
    try:
        for turn in turns:
            text_in(turn.role, turn.content)
        check_readable(history)
    except MalformedHistoryError as flaw:
        return history, flaw
    return history, None
