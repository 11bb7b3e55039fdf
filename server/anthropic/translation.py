"""Translation between Anthropic's messages and chat completions' guided steps. Pure."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qguide.qnet.anthropic_blocks import INVALID_JSON, SIGNATURE, THOUGHTS, chat_turns
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.qnet.openai_messages import wire_message
from qguide.qnet.types import Candidate, ToolCall, spent_on
from qguide.server.allowlist.parameters import without_effect
from qguide.server.anthropic.history import foreign_thoughts, input_of, referenced_tools
from qguide.server.anthropic.schemas import AnthropicTool, MessagesRequest, Prompt, ToolChoice
from qguide.server.chat.schemas import ChatCompletionRequest, GuidanceOptions, chat_request_of
from qguide.server.chat.translation import finish_reason_of, guidance_of
from qguide.server.guidance.native import native_answer
from qguide.server.guidance.step_types import GuidedStepResult
from qguide.server.streaming.events import Json

CALLED_HERE: Final = {"stop": "stop_sequences", "response_format": "output_config.format"}
"""Anthropic's names of parameters that a chat completion calls otherwise."""

_WITHOUT_EFFECT: Final = frozenset(
    (
        *("n", "max_completion_tokens", "stream_options"),
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    )
)
"""Anthropic's parameters that chat completions have not, or with other values, and theirs that an
answer in this dialect has no place for. `mcp_servers` and `container` are refused: whoever sends
them counts on tools that nobody would run."""
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as a chat completion, and what its answer depends on.

    Attributes:
        stop_sequences: texts that end a candidate.
        thinks: the caller wants the upstream's thoughts as blocks.
        warnings: what could not be passed on, and why.
    """

    chat: ChatCompletionRequest
    stop_sequences: Sequence[str]
    thinks: bool
    warnings: tuple[str, ...]


def read_message(body: MessagesRequest) -> Asked:
    """Translate a request to a chat completion's."""
    chat = chat_prompt(body) | {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "seed": body.seed,
        "stop": body.stop_sequences or None,
        "response_format": _response_format(body),
        "user": body.metadata and body.metadata.user_id,
    }
    passed_on = {k: v for k, v in body.parameters.items() if k not in _WITHOUT_EFFECT}
    given = {name: value for name, value in chat.items() if value is not None}
    return Asked(
        chat_request_of(passed_on | given),
        body.stop_sequences or (),
        body.thinking is not None and body.thinking.type != "disabled",
        tuple(_warnings(body)),
    )


def chat_prompt(body: Prompt) -> Json:
    """The prompt as fields of a chat completion's body; null where there is nothing."""
    choice = body.tool_choice
    one_call = bool(choice and choice.disable_parallel_tool_use)
    return {
        "model": body.model,
        "messages": chat_turns(body.system, body.messages),
        "tools": _tools(body) or None,
        "tool_choice": choice and _tool_choice(choice),
        "parallel_tool_calls": False if one_call else None,
    }


def _tools(body: Prompt) -> list[Json]:
    """The tools that the model knows of: deferred ones only once a search has found them."""
    found = referenced_tools(body.messages)
    tools = [(tool, _tool(tool, f"tools[{i}]")) for i, tool in enumerate(body.tools or ())]
    return [read for tool, read in tools if not tool.defer_loading or tool.name in found]


def _tool(tool: AnthropicTool, place: str) -> Json:
    if tool.input_schema is None or tool.type not in (None, "custom"):
        raise UnsupportedParameterError(
            f"{place} ({tool.name!r}, type {(tool.type or 'custom')[:40]!r}) is no custom tool "
            "with an input_schema: upstreams know no tools that Anthropic defines or runs; "
            "describe it by an input_schema alone or remove it",
            parameter="tools",
        )
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _tool_choice(choice: ToolChoice) -> str | Json:
    if choice.type != "tool":
        return _TOOL_CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequestError("tool_choice has the type 'tool' but no name; name the tool")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(body: MessagesRequest) -> Json | None:
    format_ = body.output_config and body.output_config.format
    if not format_:
        return None
    schema = {"name": "answer", "schema": format_.schema_, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _warnings(body: MessagesRequest) -> list[str]:
    warnings: list[str] = []
    dropped = {*(_WITHOUT_EFFECT & body.parameters.keys())}
    if body.output_config and body.output_config.effort:
        dropped.add("output_config.effort")
    warnings += without_effect(dropped)
    if thoughts := foreign_thoughts(body.messages):
        warnings.append(
            f"{thoughts} thinking blocks were left out, because no upstream of this server gave "
            "them"
        )
    return warnings


def message_of(taken: GuidedStepResult, asked: Asked, options: GuidanceOptions) -> Json:
    """The response body: Anthropic's message, extended by `qguide`."""
    decision = taken.decision
    chosen = decision.candidates[decision.chosen]
    if native := native_answer(taken, "messages"):
        blocks, unparsed = native["content"], list[ToolCall]()
        stop_reason, stop_sequence = native.get("stop_reason"), native.get("stop_sequence")
    else:
        blocks, unparsed = _blocks(chosen, thinks=asked.thinks)
        stop_reason, stop_sequence = _stop_reason(chosen, asked.stop_sequences)
    guidance = guidance_of(taken, options, [decision.chosen])
    guidance["warnings"] += [*asked.warnings, *map(_unparsed, unparsed)]
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": taken.policy,
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": _usage(taken),
        "qguide": guidance,
    }


def _blocks(candidate: Candidate, *, thinks: bool) -> tuple[list[Json], list[ToolCall]]:
    """Content of the chosen candidate, and its calls whose arguments are not a JSON object."""
    message, wire = candidate.message, wire_message(candidate.message)
    blocks = list(_thoughts(wire)) if thinks else []
    refusal = wire.get("refusal")
    if text := message.content or (refusal if isinstance(refusal, str) else ""):
        blocks.append({"type": "text", "text": text})
    unparsed = []
    for call in message.tool_calls:
        read, is_object = input_of(call.arguments)
        unparsed += [] if is_object else [call]
        called = call.id or f"toolu_{uuid.uuid4().hex}"
        blocks.append({"type": "tool_use", "id": called, "name": call.name, "input": read})
    return blocks, unparsed


def _thoughts(wire: Mapping[str, Any]) -> list[Json]:
    """At most one block: upstreams with both fields say the same in both."""
    for field in THOUGHTS:
        if isinstance(thoughts := wire.get(field), str) and thoughts:
            return [{"type": "thinking", "thinking": thoughts, "signature": SIGNATURE + field}]
    return []


def _stop_reason(candidate: Candidate, stop_sequences: Sequence[str]) -> tuple[str, str | None]:
    """The reason and the stop sequence, which only some upstreams (vLLM, SGLang) name."""
    finish_reason = finish_reason_of(candidate)
    if candidate.message.tool_calls and finish_reason != "length":
        return "tool_use", None  # an upstream that was made to call a tool says "stop"
    matched = candidate.extra.get("stop_reason")
    if isinstance(matched, str) and matched in stop_sequences:
        return "stop_sequence", matched
    return _STOP_REASONS.get(finish_reason, "end_turn"), None


def _usage(taken: GuidedStepResult) -> Json:
    """Tokens of all candidates; Anthropic counts cached tokens apart from the input's."""
    usage = taken.decision.usage
    reasoning = spent_on(taken.decision.candidates).completion_details.get("reasoning_tokens")
    details = {"output_tokens_details": {"thinking_tokens": reasoning}} if reasoning else {}
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_prompt_tokens,
        "output_tokens": usage.completion_tokens,
        **details,
    }


def _unparsed(call: ToolCall) -> str:
    return (
        f"the arguments of the call of {call.name!r} are not a JSON object; its input has them as "
        f"the text {INVALID_JSON}"
    )
