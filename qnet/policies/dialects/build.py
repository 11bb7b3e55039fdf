"""Builds the dialect in which an upstream is asked."""

from qnet.native import DialectName
from qnet.policies.dialects.base import Dialect
from qnet.policies.dialects.chat import ChatDialect, MaxTokensName
from qnet.policies.dialects.messages import MessagesDialect
from qnet.policies.dialects.responses import ResponsesDialect


def build_dialect(name: DialectName, max_tokens_name: MaxTokensName = "max_tokens") -> Dialect:
    """The dialect of this name.

    Args:
        max_tokens_name: of chat completions; the other dialects have one name.
    """
    match name:
        case "chat":
            return ChatDialect(max_tokens_name)
        case "messages":
            return MessagesDialect()
        case "responses":
            return ResponsesDialect()
