"""Gemini's generateContent as chats, for the fake upstream; strict where Google is.

Written apart from the codec in `qguide.qnet.dialects`, so that a test with the fake can find its
mistakes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic.alias_generators import to_camel

from qguide.qnet.dialects.shapes import Json

SIGNATURE: Final = "c2lnbmVk"
_BODY: Final = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
_CONFIG: Final = {
    *("temperature", "topP", "topK", "candidateCount", "maxOutputTokens", "stopSequences", "seed"),
    *("presencePenalty", "frequencyPenalty", "responseMimeType", "responseJsonSchema", "responseSchema"),
    *("thinkingConfig", "mediaResolution"),
}
_FUNCTION: Final = {
    *("name", "description", "behavior", "parameters", "parametersJsonSchema", "response", "responseJsonSchema")
}
_DATA: Final = ("text", "inlineData", "fileData", "functionCall", "functionResponse")
_PART: Final = {*_DATA, "thought", "thoughtSignature"}
_MODES: Final = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_MOST: Final = 8
_REASONS: Final = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}


def chat_of_content(body: Json, model: str) -> Json:
    """The chat completion that a request for content asks for.

    Raises:
        ValueError: Google would refuse it.
    """
    _known(body, _BODY)
    config = body.get("generationConfig") or {}
    _known(config, _CONFIG)
    if not 1 <= (n := config.get("candidateCount", 1)) <= _MOST:
        raise ValueError("candidateCount must be in the range [1, 8].")
    _check_turns(body["contents"], signed=model.startswith("gemini-3"))
    turns: list[Json] = []
    if system := body.get("systemInstruction"):
        turns.append({"role": "system", "content": _text(system["parts"])})
    for content in body["contents"]:
        turns.extend(_turns(content))
    chat: Json = {"model": model, "messages": turns, "n": n}
    if tools := body.get("tools"):
        declared = [function for tool in tools for function in tool["functionDeclarations"]]
        chat["tools"] = [{"type": "function", "function": _function(one)} for one in declared]
    if calling := (body.get("toolConfig") or {}).get("functionCallingConfig"):
        chat["tool_choice"] = _MODES[calling["mode"]]
    if config.get("responseMimeType") == "application/json":
        schema = config.get("responseJsonSchema") or _lower(config.get("responseSchema"))
        named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        chat["response_format"] = named if schema else {"type": "json_object"}
    return chat


def content_of_chat(completion: Json, body: Json) -> Json:
    """The answer that says the same as a chat completion."""
    usage = completion["usage"]
    thinks = bool(((body.get("generationConfig") or {}).get("thinkingConfig") or {}).get("includeThoughts"))
    return {
        "candidates": [_candidate(choice, thinks=thinks) for choice in completion["choices"]],
        "usageMetadata": {
            "promptTokenCount": usage["prompt_tokens"],
            "cachedContentTokenCount": usage["prompt_tokens_details"]["cached_tokens"],
            "candidatesTokenCount": usage["completion_tokens"],
            "totalTokenCount": usage["total_tokens"],
        },
        "modelVersion": completion["model"],
        "responseId": "fake",
    }


def content_events(answer: Json) -> Iterator[Json]:
    """The pieces of a stream: each part apart, a text in two, and the reason in the last of a candidate."""
    for candidate in answer["candidates"]:
        for part in candidate["content"]["parts"]:
            half = len(part.get("text", "")) // 2
            head = {k: v for k, v in part.items() if k != "thoughtSignature"}
            pieces = [head | {"text": part["text"][:half]}, part | {"text": part["text"][half:]}] if half else [part]
            for piece in pieces:
                said = {"content": {"role": "model", "parts": [piece]}, "index": candidate["index"]}
                yield {"candidates": [said], "usageMetadata": {"promptTokenCount": 1}}
        end = {"finishReason": candidate["finishReason"], "index": candidate["index"]}
        yield {name: value for name, value in answer.items() if name != "candidates"} | {"candidates": [end]}


def content_error(status: int, error: Json) -> Json:
    """An error of a chat completion as Google has it."""
    said = error["message"]
    if error["code"] == "context_length_exceeded":
        said = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
    kinds = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
    return {"error": {"code": status, "message": said, "status": kinds.get(status, "INTERNAL")}}


def _lower(schema: Any) -> Any:
    """Gemini's own schema as JSON's, as far as the fake reads it."""
    if isinstance(schema, list):
        return [_lower(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _lower(value) for name, value in schema.items() if name not in ("nullable", "propertyOrdering")}
    return kept | ({"type": schema["type"].lower()} if isinstance(schema.get("type"), str) else {})


def _known(given: Json, names: set[str]) -> None:
    """Refuse unknown fields; Google's clients send some in the protocol buffers' case."""
    for name in (name for name in given if to_camel(name) not in names):
        raise ValueError(f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')


def _check_turns(contents: Sequence[Json], *, signed: bool) -> None:
    """Refuse what Google refuses of the order of turns, calls, results and signatures."""
    calls = 0
    for index, content in enumerate(contents):
        parts = content.get("parts") or []
        if content.get("role", "user") not in ("user", "model", "function", "tool") or not parts:
            raise ValueError(f"contents[{index}]: Please use a valid role: user, model.")
        for part in parts:
            _known(part, _PART)
            if sum(name in part for name in _DATA) != 1:
                raise ValueError("required oneof field 'data' must have one initialized field")
        called = [part for part in parts if "functionCall" in part]
        if content.get("role") == "model":  # of a stream each piece may be sent back as a content
            calls += len(called)
        elif sum("functionResponse" in part for part in parts) != calls:
            raise ValueError(
                "Please ensure that the number of function response parts is equal to the number of function call parts"
            )
        else:
            calls = 0
        if called and not index:
            raise ValueError("Please ensure that function call turn comes immediately after a user turn")
        if called and signed and not called[0].get("thoughtSignature"):
            raise ValueError("Function call is missing a thought_signature in functionCall parts.")
    if not contents or (len(contents) == 1 and contents[0]["role"] != "user"):
        raise ValueError("Please ensure that single turn requests end with a user role.")


def _turns(content: Json) -> Iterator[Json]:
    for part in content["parts"]:
        if result := part.get("functionResponse"):
            yield {"role": "tool", "tool_call_id": result.get("id", ""), "content": json.dumps(result["response"])}
    calls = [_call(part["functionCall"]) for part in content["parts"] if "functionCall" in part]
    text = _text([part for part in content["parts"] if not part.get("thought")])
    role = "assistant" if content["role"] == "model" else "user"
    if text or calls:
        yield {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}


def _text(parts: Sequence[Json]) -> str:
    return "\n".join(part["text"] for part in parts if "text" in part)


def _call(call: Json) -> Json:
    function = {"name": call["name"], "arguments": json.dumps(call["args"])}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def _function(declared: Json) -> Json:
    _known(declared, _FUNCTION)
    schema: Any = declared.get("parametersJsonSchema") or _lower(declared.get("parameters")) or {}
    return {"name": declared["name"], "parameters": schema}


def _candidate(choice: Json, *, thinks: bool) -> Json:
    said = choice["message"]
    parts: list[Json] = [{"text": "Let me see.", "thought": True}] if thinks else []
    if said["content"]:
        parts.append({"text": said["content"]})
    for call in said.get("tool_calls") or ():
        function = call["function"]
        args = json.loads(function["arguments"])
        parts.append(
            {"functionCall": {"name": function["name"], "args": args, "id": call["id"]}, "thoughtSignature": SIGNATURE}
        )
    return {
        "content": {"role": "model", "parts": parts},
        "finishReason": _REASONS[choice["finish_reason"]],
        "index": choice["index"],
    }
