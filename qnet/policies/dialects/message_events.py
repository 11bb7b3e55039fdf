"""A message of Anthropic's dialect from the events of its stream. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qguide.qnet.anthropic_blocks import INVALID_JSON

_TEXTS: Final = ("text", "thinking", "signature")
"""Fields of a block that come in pieces, each in a delta of a type that ends in `_delta`."""
_LISTS: Final = {"citations_delta": ("citation", "citations")}

Json = dict[str, Any]


def assembled_message(events: Sequence[Mapping[str, Any]]) -> Json | None:
    """The message; None if its last event did not come."""
    message: Json | None = None
    blocks: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    ended = False
    for event in events:
        index = event.get("index")
        match event.get("type"):
            case "message_start" if isinstance(event.get("message"), dict):
                message = dict(event["message"])
            case "content_block_start" if isinstance(event.get("content_block"), dict):
                blocks[index if isinstance(index, int) else len(blocks)] = {
                    **event["content_block"]
                }
            case "content_block_delta" if isinstance(index, int) and index in blocks:
                delta = event.get("delta")
                if isinstance(delta, dict):
                    _extend(blocks[index], delta, inputs, index)
            case "message_delta" if message is not None:
                _end(message, event)
            case "message_stop":
                ended = True
    if message is None or not ended:
        return None
    for index, written in inputs.items():
        blocks[index]["input"] = _input(written)
    return message | {"content": [blocks[index] for index in sorted(blocks)]}


def _extend(block: Json, delta: Mapping[str, Any], inputs: dict[int, str], index: int) -> None:
    kind = delta.get("type")
    for name in _TEXTS:
        if kind == f"{name}_delta" and isinstance(piece := delta.get(name), str):
            block[name] = (block.get(name) or "") + piece
    if kind == "input_json_delta" and isinstance(piece := delta.get("partial_json"), str):
        inputs[index] = inputs.get(index, "") + piece
    if kind in _LISTS and _LISTS[kind][0] in delta:
        one, many = _LISTS[kind]
        block[many] = [*(block.get(many) or ()), delta[one]]


def _end(message: Json, event: Mapping[str, Any]) -> None:
    """The reason why the message ended, and its usage, which has only what changed."""
    if isinstance(event.get("delta"), dict):
        message |= event["delta"]
    if isinstance(event.get("usage"), dict):
        earlier = message.get("usage")
        message["usage"] = (earlier if isinstance(earlier, dict) else {}) | {
            name: value for name, value in event["usage"].items() if value is not None
        }


def _input(written: str) -> Json:
    """Arguments as the model wrote them, where they are not a JSON object."""
    if not written.strip():
        return {}
    try:
        read = json.loads(written)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {INVALID_JSON: written}
