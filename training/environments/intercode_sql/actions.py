"""A reply's SQL: a fenced block, InterCode's "execute[…]", or the whole reply; lines are kept."""

import re
from typing import Final

_FENCE: Final = re.compile(r"```(?:sql)?[ \t]*\n?(.*?)```", re.I | re.S)
_EXECUTE: Final = re.compile(r"execute\[(.*)\]", re.I | re.S)


def parse_sql(reply: str) -> str:
    """The statement that a reply acts by, over as many lines as it has.

    The last fenced block counts, so that thoughts may come before it.
    """
    blocks = _FENCE.findall(reply)
    text = (blocks[-1] if blocks else reply).strip()
    wrapped = _EXECUTE.fullmatch(text)
    return wrapped.group(1).strip() if wrapped else text
