"""Requests of Anthropic's Messages API, from and to those of chat completions. Pure.

A tool's results become messages of their own, before the rest of the user's message, because a
chat completion has them so. Thoughts go back to an upstream only if it was an upstream of this
server that gave them, which their signature says.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qguide.qnet.chat_messages import PART_END, json_object, text_of
from qguide.qnet.dialects.anthropic_blocks import Block, Part, Turn, content_of, misplaced, part_of, parts_of, required
from qguide.qnet.dialects.shapes import (
    CHATS_ALONE,
    EFFORTLESS,
    THOUGHTS,
    Json,
    assistant_turn,
    chat_name,
    closed,
    image_address,
    joined,
    passed_on,
    turns_of,
)
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.turns import paced

INVALID_JSON: Final = "INVALID_JSON"
"""The only name in the input of a tool_use block whose arguments are not a JSON object."""
SIGNATURE: Final = "qguide:"
"""Beginning of the signature of this server's thinking blocks; the name of the field follows."""

THINKING: Final = ("thinking", "redacted_thinking")
"""Types of blocks that hold thoughts."""

_ERROR: Final = "Error: "


def chat_turns(system: str | Sequence[Part] | None, turns: Sequence[Turn]) -> list[Json]:
    """The messages of a chat completion."""
    chat: list[Json] = []
    if system:
        chat.append({"role": "system", "content": content_of(system, "system")})
    for index, turn in enumerate(paced(turns)):
        chat.extend(_turns_of(turn, f"messages[{index}].content"))
    return chat


def arguments_of(given: Mapping[str, Any]) -> str:
    """The arguments of a call, as its model wrote them, from the input of a tool_use block."""
    raw = given.get(INVALID_JSON) if len(given) == 1 else None
    return raw if isinstance(raw, str) else json.dumps(given, ensure_ascii=False)


def thoughts_field(block: Block) -> str | None:
    """The field in which the upstream gave these thoughts; None if none of this server's did."""
    signature = block.signature or ""
    field = signature.removeprefix(SIGNATURE)
    return field if field in THOUGHTS and signature != field else None


def _turns_of(turn: Turn, place: str) -> Iterator[Json]:
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
    elif turn.role == "assistant":
        yield _assistant(turn.content, place)
    else:
        yield from _answers(turn.role, turn.content, place)


def _assistant(blocks: Sequence[Block], place: str) -> Json:
    texts: list[str] = []
    calls: list[Json] = []
    thoughts: dict[str, list[str]] = {}
    for index, block in enumerate(paced(blocks)):
        here = f"{place}[{index}]"
        match block.type:
            case "text":
                texts.append(required(block.text, f"{here}.text"))
            case "tool_use":
                calls.append(_call(block, here))
            case "thinking" | "redacted_thinking":
                if field := thoughts_field(block):
                    thoughts.setdefault(field, []).append(block.thinking or "")
            case other:
                raise misplaced(other, here, "the assistant's message")
    return assistant_turn(texts, calls, thoughts)


def _call(block: Block, place: str) -> Json:
    arguments = arguments_of(block.input or {})
    name = chat_name(required(block.name, f"{place}.name"), block.toolset_name)
    function = {"name": name, "arguments": arguments}
    return {"id": required(block.id, f"{place}.id"), "type": "function", "function": function}


def _answers(role: str, blocks: Sequence[Block], place: str) -> Iterator[Json]:
    """Results of tools, then a message of everything else; images of results are in it as well."""
    others: list[Json] = []
    for index, block in enumerate(paced(blocks)):
        here = f"{place}[{index}]"
        if block.type != "tool_result":
            others.append(part_of(block, here))
            continue
        parts = parts_of(block.content or "", f"{here}.content")
        text = PART_END.join(part["text"] for part in parts if part["type"] == "text")
        if block.is_error and not text.startswith(_ERROR):
            text = _ERROR + text
        call_id = required(block.tool_use_id, f"{here}.tool_use_id")
        yield {"role": "tool", "tool_call_id": call_id, "content": text}
        others.extend(part for part in parts if part["type"] != "text")
    if others or not blocks:
        yield {"role": role, "content": joined(others)}


MAX_TOKENS: Final = 4096
"""For a request without a limit, which this dialect has to have."""
_THOUGHTFUL: Final = 16_384  # likewise for one with thoughts, which count
_LEAST_THOUGHT: Final = 1024
_LEAST_TOP_P: Final = 0.95
"""Least of a request with thoughts, which may also have no `top_k` and no other temperature than 1."""
_EFFORTS: Final = {"none": None, "minimal": "low"}  # efforts of chats that this dialect calls otherwise
THINKING_BLOCKS: Final = "thinking_blocks"
"""Field of a chat message with the thoughts as Anthropic signed them; LiteLLM's name for it."""

_WITHOUT_EFFECT: Final = frozenset(
    (
        "logprobs",
        "max_completion_tokens",
        "n",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "verbosity",
    )
)
_OWN: Final = ("model", "messages", "temperature", "max_tokens")
_CACHED: Final = "cache_control"
_MOST_BREAKPOINTS: Final = 4
_OPENING: Final[Json] = {"role": "user", "content": [{"type": "text", "text": "(no message yet)"}]}
"""Put first where nobody or the assistant has spoken first: this dialect begins with the user."""
_TOOL_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}


def request_of(chat: Json, native: Mapping[str, Any] | None = None) -> Json:
    """The request that asks for the same as a chat completion's, with a `native` prompt as it came."""
    parameters = {name: value for name, value in chat.items() if name not in _OWN}
    longest = chat.get("max_completion_tokens") or chat.get("max_tokens")
    if native is None:
        body = {**_prompt(chat["messages"]), **_parameters(parameters)}
        if _may_think(chat, body, longest):
            body.pop("top_k", None)
            body["thinking"] = {"type": "adaptive"}
            longest = longest or _THOUGHTFUL
    else:
        body = {**native}
    own = {"model": chat["model"], "max_tokens": longest or body.get("max_tokens") or MAX_TOKENS}
    return {**body, **own, **{name: chat[name] for name in ("temperature",) if name in chat}}


def marked(body: Json) -> Json:
    """The request with a cache breakpoint at its end, if it may have one more.

    A `cache_control` of the whole request is such a breakpoint already.
    """
    turns, system = body["messages"], body.get("system")
    contents = [turn["content"] for turn in turns] + [system, body.get("tools")]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    breakpoints = sum(_CACHED in block for block in blocks)
    content = turns[-1]["content"]
    ends = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    bare = ("text", *THINKING)  # thoughts and empty texts cannot have one
    if _CACHED in body or breakpoints >= _MOST_BREAKPOINTS or not ends:
        return body
    if ends[-1].get("type") in bare and not ends[-1].get("text"):
        return body
    ends[-1] = {_CACHED: {"type": "ephemeral"}, **ends[-1]}
    return {**body, "messages": [*turns[:-1], {**turns[-1], "content": ends}]}


def _prompt(rows: Sequence[Mapping[str, Any]]) -> Json:
    instructions, turns = turns_of(rows, _blocks, assistant="assistant", field="content")
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, _OPENING)
    return {"messages": turns, **_system(instructions)}


def _system(rows: Sequence[Mapping[str, Any]]) -> Json:
    """Instructions as one text, or as blocks if the prompt is to be cached behind one of them."""
    blocks = [block for row in rows for block in _blocks(row)]
    if any(_CACHED in block for block in blocks):
        return {"system": blocks}
    system = "\n\n".join(text_of(row["content"]) for row in rows)
    return {"system": system} if system else {}


def _blocks(row: Mapping[str, Any]) -> list[Json]:
    """The blocks of a turn; behind the last one the prompt is cached if the turn says so."""
    *others, last = [*_plain_blocks(row)] or [{}]
    return [*others, last | _cached(row)] if last else []


def _cached(given: Mapping[str, Any]) -> Json:
    """The caller's breakpoint of the prompt's cache, of a turn, a part or a tool."""
    return {_CACHED: given[_CACHED]} if isinstance(given.get(_CACHED), Mapping) else {}


def _plain_blocks(row: Mapping[str, Any]) -> Iterator[Json]:
    """The blocks of a turn; those without text are left out, because they are refused."""
    if row["role"] in ("tool", "function"):
        call_id = row.get("tool_call_id") or ""
        yield {"type": "tool_result", "tool_use_id": call_id, "content": list(_row_parts(row))}
        return
    yield from _thoughts(row.get(THINKING_BLOCKS))
    yield from _row_parts(row)
    for call in row.get("tool_calls") or ():
        function = function_of(call)
        given = {"name": function["name"], "input": written_input(function)}
        yield {"type": "tool_use", "id": call.get("id"), **given}


def _thoughts(given: object) -> Iterator[Json]:
    """Signed thoughts of a chat's message; no other block, which could name an address."""
    for block in given if isinstance(given, list) else ():
        if isinstance(block, dict) and block.get("type") in THINKING:
            yield block


def _row_parts(row: Mapping[str, Any]) -> Iterator[Json]:
    content = row.get("content") or row.get("refusal") or ""
    parts: list[Json] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for part in parts:
        match part:
            case {"type": "text" | "refusal" as kind}:
                if said := part.get(kind):
                    yield {"type": "text", "text": said} | _cached(part)
            case {"type": "image_url"}:
                yield {"type": "image", "source": _source(image_address(part))} | _cached(part)
            case {"type": "file", "file": {"file_data": str(data)}}:
                yield {"type": "document", "source": _source(data)} | _cached(part)
            case _:
                raise InvalidRequestError(
                    f"a message has a part of type {str(part.get('type'))[:40]!r}, which an "
                    "upstream of the dialect 'messages' cannot be sent; send text, image_url or "
                    "file_data"
                )


def _source(address: str) -> Json:
    head, comma, data = address.partition(";base64,")
    if head.startswith("data:") and comma:
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "url", "url": address}


def written_input(function: Mapping[str, Any]) -> Json:
    """The arguments of a chat's call as an object, which has those that are none as a text."""
    given = json_object(function.get("arguments") or "{}")
    return {INVALID_JSON: function["arguments"]} if given is None else given


def function_of(given: Mapping[str, Any], dialect: str = "messages") -> Mapping[str, Any]:
    """The function of a chat's tool, call or `tool_choice`."""
    if (kind := given.get("type", "function")) != "function":
        raise InvalidRequestError(
            f"a tool or call has the type {str(kind)[:40]!r}; an upstream of the dialect "
            f"{dialect!r} knows functions only"
        )
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            'a tool, a call or tool_choice names no function; send {"type": "function", "function": {"name": …}}'
        )
    return function


def _parameters(parameters: Mapping[str, object]) -> Json:
    given = passed_on(parameters, "messages", without_effect=_WITHOUT_EFFECT, unknown=CHATS_ALONE)
    said: Json = {}
    stop = given.pop("stop", None)
    if stop:
        said["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user := given.pop("user", None):
        said["metadata"] = {"user_id": user}
    effort = given.pop("reasoning_effort", None)
    given.pop("reasoning", None)
    if config := _output_config(given.pop("response_format", None), _EFFORTS.get(effort, effort)):
        said["output_config"] = config
    choice, parallel = given.pop("tool_choice", None), given.pop("parallel_tool_calls", None)
    if tools := given.pop("tools", None):
        functions: list[Mapping[str, Any]] = [{**function_of(tool), **_cached(tool)} for tool in tools]
        if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
            functions, choice = allowed_functions(functions, choice.get("allowed_tools"))
        said["tools"] = [_tool(function) for function in functions]
        if choice is not None or parallel is False:
            said["tool_choice"] = _tool_choice(choice, parallel)
    return given | said


def _may_think(chat: Mapping[str, Any], body: Mapping[str, Any], longest: int | None) -> bool:
    """True if a chat asks for thoughts, and they can be switched on beside its other parameters."""
    effort = chat.get("reasoning_effort")
    asks = bool(effort or chat.get("reasoning")) and effort not in EFFORTLESS[1:]
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    spread = chat.get("temperature") in (None, 1) and (chat.get("top_p") or 1) >= _LEAST_TOP_P
    return asks and spread and not forced and "thinking" not in body and (longest is None or longest > _LEAST_THOUGHT)


def allowed_functions(functions: Sequence[Mapping[str, Any]], allowed: object) -> tuple[list[Mapping[str, Any]], str]:
    """The functions that may be called, and whether one has to be."""
    match allowed:
        case {"mode": str(mode), "tools": list(tools)} if all(isinstance(t, dict) for t in tools):
            names = {function_of(tool)["name"] for tool in tools}
            if found := [function for function in functions if function["name"] in names]:
                return found, mode
    raise InvalidRequestError(
        'tool_choice allows none of the tools; send {"type": "allowed_tools", "allowed_tools": '
        '{"mode": "auto", "tools": […]}} with some of them'
    )


def _tool(function: Mapping[str, Any]) -> Json:
    schema = {"type": "object"} | (function.get("parameters") or {"properties": {}})
    kept = {name: said for name in ("description", "strict") if (said := function.get(name))}
    schema = closed(schema) if kept.get("strict") else schema
    return {"name": function["name"], **kept, "input_schema": schema} | _cached(function)


def _tool_choice(choice: Any, parallel: Any) -> Json:
    if isinstance(choice, Mapping):
        said: Json = {"type": "tool", "name": function_of(choice)["name"]}
    else:
        said = {"type": _TOOL_CHOICES.get(choice, "auto")}
    one = parallel is False and said["type"] != "none"
    return said | ({"disable_parallel_tool_use": True} if one else {})


def _output_config(format_: Any, effort: Any) -> Json:
    config: Json = {} if effort is None else {"effort": effort}
    match format_:
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            return config | {"format": {"type": "json_schema", "schema": closed(schema)}}
        case None | {"type": "text" | "json_object"}:  # the prompt has to ask for JSON anyway
            return config
    raise InvalidRequestError(
        "response_format is not one of text, json_object and json_schema with a schema; send one of them"
    )
