"""Translation between Anthropic's messages and chat completions' guided steps. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qguide.qnet.dialects.anthropic_answers import message_of
from qguide.qnet.dialects.anthropic_requests import THINKING, chat_turns, thoughts_field
from qguide.qnet.dialects.shapes import ASKED, Json, answer_format
from qguide.qnet.errors import InvalidRequestError
from qguide.server.anthropic.schemas import Block, MessagesRequest, Prompt, ToolChoice, Turn
from qguide.server.anthropic.tool_definitions import read_tools, toolset_of
from qguide.server.chat.schemas import chat_request_of
from qguide.server.chat.translation import Translated
from qguide.server.settings.allowed_parameters import without_effect

CALLED_HERE: Final = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""Anthropic's names of parameters that a chat completion calls otherwise."""

_WITHOUT_EFFECT: Final = frozenset(
    (
        *("n", "max_completion_tokens", "stream_options", "betas", "billing_policy", "cache_control"),
        *("context_management", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo"),
        *("service_tier", "speed", "user_profile_id", "workspace_id"),
    )
)
"""Anthropic's parameters that chat completions have not, or with other values, and theirs that an answer in this
dialect has no place for. `mcp_servers` and `container` are refused: whoever sends them counts on tools that nobody
would run."""
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def read_message(body: MessagesRequest) -> Translated:
    """Translate a request to a chat completion's."""
    wanted = body.output_config
    chat = chat_prompt(body) | {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "stop": body.stop_sequences or None,
        "response_format": answer_format(wanted.format.schema_) if wanted and wanted.format else None,
        "user": body.metadata and body.metadata.user_id,
    }
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    passed_on = {k: v for k, v in body.parameters.items() if k not in _WITHOUT_EFFECT}
    given = {name: value for name, value in chat.items() if value is not None} | (ASKED if thinks else {})
    return Translated(
        chat_request_of(passed_on | given),
        thinks,
        _warnings(body),
        body.stop_sequences or (),
        tuple(filter(None, map(toolset_of, body.tools or ()))),
    )


def chat_prompt(body: Prompt) -> Json:
    """The prompt as fields of a chat completion's body; null where there is nothing."""
    contents = [block.content for block in _blocks(body.messages) if isinstance(block.content, list)]
    # Found by a search for tools that the caller ran.
    found = {part.tool_name for content in contents for part in content if part.tool_name}
    tools = read_tools(body.tools or (), found)
    choice = body.tool_choice if tools else None  # some clients choose among none
    one_call = bool(choice and choice.disable_parallel_tool_use)
    return {
        "model": body.model,
        "messages": chat_turns(body.system, body.messages),
        "tools": tools or None,
        "tool_choice": choice and _tool_choice(choice),
        "parallel_tool_calls": False if one_call else None,
    }


def _tool_choice(choice: ToolChoice) -> str | Json:
    if choice.type != "tool":
        return _TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequestError("tool_choice has the type 'tool' but no name; name the tool")
    return {"type": "function", "function": {"name": choice.name}}


def _warnings(body: MessagesRequest) -> tuple[str, ...]:
    dropped = {*(_WITHOUT_EFFECT & body.parameters.keys())}
    if body.output_config and body.output_config.effort:
        dropped.add("output_config.effort")
    foreign = sum(block.type in THINKING and thoughts_field(block) is None for block in _blocks(body.messages))
    said = f"{foreign} thinking blocks were left out, because no upstream of this server gave them"
    return (*without_effect(dropped), *([said] if foreign else []))


def answer_of(completion: Json, asked: Translated, native: Mapping[str, Any] | None = None) -> Json:
    """The response body: Anthropic's message, extended by `qguide`."""
    message, warnings = message_of(
        completion, thinks=asked.thinks, stop_sequences=asked.stop_sequences, native=native, toolsets=asked.toolsets
    )
    guidance = completion["qguide"]
    guidance["warnings"] += [*asked.warnings, *warnings]
    return message | {"qguide": guidance}


def _blocks(turns: Sequence[Turn]) -> Iterator[Block]:
    for turn in turns:
        if not isinstance(turn.content, str):
            yield from turn.content
