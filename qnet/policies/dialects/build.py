"""Builds the dialect in which an upstream is asked."""

from qguide.qnet.native import DialectName
from qguide.qnet.policies.dialects.base import Dialect
from qguide.qnet.policies.dialects.chat import ChatDialect, MaxTokensName
from qguide.qnet.policies.dialects.messages import MessagesDialect
from qguide.qnet.policies.dialects.responses import ResponsesDialect


def build_dialect(name: DialectName, max_tokens_name: MaxTokensName = "max_tokens") -> Dialect:
    """The dialect of this name."""
    match name:
        case "chat":
            return ChatDialect(max_tokens_name)
        case "messages":
            return MessagesDialect()
        case "responses":
            return ResponsesDialect()
