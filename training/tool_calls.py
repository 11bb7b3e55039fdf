"""Tools of an environment in OpenAI's shape, and the arguments of a call."""

import json
from collections.abc import Mapping
from typing import Any

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import ToolCall

Tool = Mapping[str, Any]
"""One tool: `{"type": "function", "function": {"name", "description", "parameters"}}`."""


def function_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """A tool that is a function.

    Args:
        name: name by which replies call it.
        description: text that policies read.
        parameters: JSON schema of the arguments, an object.
    """
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}


def tool_name(tool: Tool) -> str:
    """The name by which replies call a tool."""
    name: str = tool["function"]["name"]
    return name


def read_call(text: str) -> ToolCall:
    """A call that is written as `name({"argument": 1})`.

    Raises:
        ConfigError: it is written differently.
    """
    name, bracket, rest = text.strip().partition("(")
    call = ToolCall(name.strip(), rest.removesuffix(")"))
    if not bracket or not name or arguments_of(call) is None:
        raise ConfigError(f'{text!r} is no tool call; write name({{"argument": 1}})')
    return call


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    """The arguments of a call; None if they are no JSON object."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None
