"""Compaction of a long input: its messages, and a summary of all the rest by the policy."""

import uuid
from typing import Any, Final

from pydantic import BaseModel, Field

from qguide.qnet.dialects.responses_requests import COMPACTIONS, compacted_turn, compaction_of
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError, UpstreamError
from qguide.server.own_bodies.schemas import ListOf
from qguide.server.responses.answers import ResponseUsage
from qguide.server.responses.schemas import InputItem, ResponsesRequest

_ASK: Final = (
    "Summarise this conversation for another assistant who continues it and sees only your summary and the user's "
    "messages. State the goal and the user's constraints, what was done and found (with names, paths, commands, values "
    "and errors word for word), what was decided and why, and what remains to be done next. Answer with the summary "
    "alone."
)
_UNSENT: Final = {"tool_choice": "none", "text": None, "max_output_tokens": None, "store": False}
ALONE: Final[Json] = {"num_candidates": 1, "episode_id": None, "earned": None, "policies": None}
"""Options of a summary, which is no step."""
_KEPT: Final = ("user", "system", "developer")


class CompactRequest(ResponsesRequest):
    """Messages to compact."""

    input: str | ListOf[InputItem] = Field(
        default=[], description="the history, if `previous_response_id` does not name all of it"
    )


class Compaction(BaseModel):
    """OpenAI's compaction: the input of the requests that go on."""

    id: str
    object: str = Field(description="`response.compaction`")
    created_at: int
    output: list[dict[str, Any]] = Field(description="messages as they came, and a `compaction` item for all the rest")
    usage: ResponseUsage


def asking(body: ResponsesRequest) -> ResponsesRequest:
    """The request for a summary of an input."""
    if not body.input:
        raise InvalidRequestError("input is empty; send the history to compact, or the previous_response_id of its end")
    ask = InputItem(role="user", content=_ASK)
    return body.model_copy(update={"input": [*_items(body), ask], **_UNSENT})


def compacted(body: ResponsesRequest, answer: Json) -> Json:
    """The compaction of an input."""
    if answer["status"] != "completed":
        raise UpstreamError("the policy's summary was cut off; compact a shorter history")
    kept = [_in_parts(item) for item in _items(body) if item.role in _KEPT]
    texts = [
        part["text"]
        for item in answer["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part.get("text")
    ]
    if not texts:
        raise UpstreamError("the policy answered without a summary; compact again")
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response.compaction",
        "created_at": answer["created_at"],
        "output": [*kept, compaction_of("\n".join(texts))],
        "usage": answer["usage"],
    }


def _in_parts(item: InputItem) -> Json:
    """A message whose content is a list of parts, which is the only one that clients read back."""
    message: Json = {"type": "message"} | item.model_dump(exclude_unset=True)
    if isinstance(content := message.get("content"), str):
        message["content"] = [{"type": "input_text", "text": content}]
    return message


def _items(body: ResponsesRequest) -> list[InputItem]:
    given = body.input
    return [InputItem(role="user", content=given)] if isinstance(given, str) else given


def check_readable(body: ResponsesRequest) -> None:
    """Refuse another server's compaction for a policy that cannot read it."""
    for index, item in enumerate(() if isinstance(body.input, str) else body.input):
        if item.type in COMPACTIONS and compacted_turn(item.model_extra or {}) is None:
            raise UnsupportedParameterError(
                f"input[{index}] was compacted by another server, which alone can read it; send the items that it "
                "stands for",
                parameter="input",
            )
