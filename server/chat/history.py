"""Conversion of chat completion messages to a history, lenient for upstreams."""

from collections.abc import Sequence

from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.types import History
from qguide.server.chat.schemas import ChatTurn
from qguide.server.messages.history import check_count, check_readable, check_size
from qguide.server.messages.schemas import text_in


def to_chat_history(
    turns: Sequence[ChatTurn], *, most: int, most_bytes: int
) -> tuple[History, MalformedHistoryError | None]:
    """Convert a conversation to a history, and report why a Q model cannot read it, if so.

    An upstream may read what a Q model cannot, for example images. Chats need not begin with a
    task, so the order of roles is not checked.

    Returns:
        The history, and the error that a Q model would raise for it, or None.

    Raises:
        HistoryTooLongError: more messages than `most`, or more text than `most_bytes`.
        MalformedHistoryError: there are no messages.
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
