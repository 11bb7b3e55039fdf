"""Conversation of a request in Anthropic's dialect: its thoughts, tools and tool inputs."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from qguide.qnet.anthropic_blocks import INVALID_JSON, THINKING, thoughts_field
from qguide.qnet.support.json_depth import MOST_LEVELS, exceeds_max_depth
from qguide.server.anthropic.schemas import Block, Turn
from qguide.server.bodies.surrogates import lone_surrogate_in

_LEVELS_AROUND: Final = 5
"""Lists and objects of a request around the input of a tool_use block."""


def foreign_thoughts(turns: Sequence[Turn]) -> int:
    """Number of thinking blocks that no upstream of this server gave, so that none gets them."""
    blocks = _blocks(turns)
    return sum(block.type in THINKING and thoughts_field(block) is None for block in blocks)


def referenced_tools(turns: Sequence[Turn]) -> set[str]:
    """Names of the tools that a search for tools, run by the caller, has found."""
    contents = (block.content for block in _blocks(turns) if isinstance(block.content, list))
    return {part.tool_name for content in contents for part in content if part.tool_name}


def input_of(arguments: str) -> tuple[dict[str, Any], bool]:
    """The input of a tool_use block, and whether the arguments were a JSON object.

    A model may write anything, above all if `max_tokens` cuts it off; the text is then the value
    of `INVALID_JSON`, so that the caller sees it and can send it back. So it is if Python reads
    what an answer in JSON cannot carry, or what is nested too deeply to be sent back.
    """
    if not arguments.strip():
        return {}, True
    try:
        read = json.loads(arguments, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or exceeds_max_depth(read, MOST_LEVELS - _LEVELS_AROUND):
        return {INVALID_JSON: arguments}, False
    if lone_surrogate_in(read):
        return {INVALID_JSON: arguments}, False
    return read, True


def _finite(number: str) -> float:
    """A number that JSON has."""
    if not math.isfinite(read := float(number)):
        raise ValueError(f"{number} is no JSON number")
    return read


def _blocks(turns: Sequence[Turn]) -> Iterator[Block]:
    for turn in turns:
        if not isinstance(turn.content, str):
            yield from turn.content
