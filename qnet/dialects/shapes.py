"""Parts of answers and parameters that several dialects share."""

import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from qguide.qnet.body_limits import exceeds_max_depth
from qguide.qnet.chat_messages import PART_END
from qguide.qnet.errors import MalformedHistoryError, UnsupportedParameterError
from qguide.qnet.types import INSTRUCTING

Json = dict[str, Any]

THOUGHTS: Final = ("reasoning_content", "reasoning")
"""Fields of a chat message in which upstreams send and take thoughts."""
ASKED: Final[Json] = {"reasoning": {"summary": "auto"}}
"""Parameter of a chat by which callers of other dialects ask for thoughts. Upstreams that are asked
for chats decide by themselves."""
EFFORTLESS: Final = (None, "none", "minimal")
"""Efforts of reasoning that ask for no thoughts."""
LENGTH: Final = "length"
"""Finish reason of a completion that was cut off."""
CHATS_ALONE = frozenset(
    ("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "modalities", "presence_penalty")
)
"""Parameters of chat completions that neither other dialect knows, and that change an answer."""

Read = TypeVar("Read", bound=BaseModel)

_NAMED_PARTS: Final = ("properties", "$defs", "definitions")  # keywords of a JSON schema that name schemas of parts
_LISTED_PARTS: Final = ("anyOf", "allOf", "oneOf")
_LIMITS: Final = frozenset(
    (
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "uniqueItems",
    )
)
"""Keywords that Anthropic refuses."""
_NEUTRAL: tuple[object, ...] = (False, 0, "", [], {})


class PiecedTexts:
    """Texts of a stream, put together at its end: a sum for each piece would copy all that came before."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, str], tuple[Json, list[str]]] = {}

    def add(self, fields: Json, name: str, piece: str) -> None:
        """Go on with the text of a field, which is whole after `join`."""
        begun = fields.get(name)
        _, pieces = self._pieces.setdefault((id(fields), name), (fields, [begun if isinstance(begun, str) else ""]))
        pieces.append(piece)
        fields[name] = ""

    def join(self) -> None:
        """Set the fields to their texts."""
        for (_, name), (fields, pieces) in self._pieces.items():
            if fields[name] == "":  # else something that is no text has replaced it
                fields[name] = "".join(pieces)


class IgnoringExtras(BaseModel, frozen=True):
    """A part of an answer; fields that it does not name are ignored."""


Count = Annotated[int, Field(ge=0), BeforeValidator(lambda count: count or 0)]
Said = Annotated[str, BeforeValidator(lambda said: "" if said is None else said)]
"""A text that may be null; any other value is no answer of the dialect."""
Tokens = list[dict[str, Any]] | None
"""Log-probabilities, one row per token."""


def turns_of(
    rows: Sequence[Mapping[str, Any]],
    parts_of: Callable[[Mapping[str, Any]], list[Json]],
    *,
    assistant: str,
    field: str,
) -> tuple[Sequence[Mapping[str, Any]], list[Json]]:
    """A chat's instructions at the beginning, and its turns, whose `field` has the parts; no role follows itself."""
    first = next((k for k, row in enumerate(rows) if row["role"] not in INSTRUCTING), len(rows))
    first = min(first, len(rows) - 1)  # system messages alone: the last one is the user's
    turns: list[Json] = []
    for row in rows[first:]:
        role = assistant if row["role"] == "assistant" else "user"
        parts = parts_of(row)
        if turns and turns[-1]["role"] == role:
            turns[-1][field] += parts
        elif parts:
            turns.append({"role": role, field: parts})
    return rows[:first], turns


def passed_on(
    parameters: Mapping[str, object], dialect: str, *, without_effect: frozenset[str], unknown: frozenset[str]
) -> dict[str, Any]:
    """A chat's parameters without those that have no effect here; `unknown` ones would change the answer: refused."""
    given = {k: v for k, v in parameters.items() if v is not None and k not in without_effect}
    for name in sorted(unknown & given.keys()):
        if given.pop(name) not in _NEUTRAL:
            raise UnsupportedParameterError(
                f"the upstream is asked in the dialect {dialect!r}, which has no {name!r}; leave "
                "the parameter out or choose another policy",
                parameter=name,
            )
    return given


def read_as(kind: type[Read], said: dict[str, Any]) -> Read | None:
    """The answer as `kind`; None if it is not one or is nested too deeply."""
    try:
        read = kind.model_validate(said)
    except (ValidationError, RecursionError):
        return None
    return None if exceeds_max_depth(said) else read


def chat_name(name: str, namespace: str | None) -> str:
    """Name of a tool in a chat, which has no namespaces or toolsets."""
    return f"{namespace}__{name}" if namespace else name


def calls_in(message: Mapping[str, Any]) -> list[Json]:
    """The calls of a chat's reply, also where its upstream knows OpenAI's deprecated form only."""
    calls: list[Json] = message.get("tool_calls") or []
    if calls or not (called := message.get("function_call")):
        return calls
    function = {"name": called["name"], "arguments": called.get("arguments") or ""}
    return [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]


def thoughts_in(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """Field and text of a reply's thoughts; upstreams with both fields say the same in both."""
    found = [(name, said) for name in THOUGHTS if isinstance(said := message.get(name), str)]
    return next(((name, said) for name, said in found if said), None)


def image_address(part: Mapping[str, Any]) -> str:
    """Address in an `image_url` part of a chat; some clients send it without an object around it."""
    match part.get("image_url"):
        case {"url": str(address)} | str(address):
            return address
    raise MalformedHistoryError("an image_url has no address; send it as `image_url.url`")


def answer_format(schema: Json) -> Json:
    """The `response_format` of a chat that asks for JSON of this schema."""
    strict = {"strict": True} if is_strict(schema) else {}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **strict}}


def is_strict(schema: Json) -> bool:
    """True if OpenAI takes a schema as strict: objects require all they have, and no others."""
    required, named = schema.get("required", []), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(named, Mapping):
        return False
    own = not _has_properties(schema) or (
        schema.get("additionalProperties") is False
        and {name for name in required if isinstance(name, str)} == named.keys()
    )
    return own and all(is_strict(part) for part in _parts_of_schema(schema))


def closed(schema: Mapping[str, Any]) -> Json:
    """A schema as Anthropic takes it.

    Objects have no properties but those named, `oneOf` is `anyOf`, and limits that its decoding
    does not keep are told in the description.
    """
    said: Json = {}
    for name, value in schema.items():
        if name in _NAMED_PARTS and isinstance(value, Mapping):
            said[name] = {key: _closed_part(part) for key, part in value.items()}
        elif name in _LISTED_PARTS and isinstance(value, list):
            said["anyOf" if name == "oneOf" else name] = [_closed_part(part) for part in value]
        elif name not in _LIMITS or (name == "minItems" and value in (0, 1)):
            said[name] = _closed_part(value) if name == "items" else value
    if limits := [f"{name}: {schema[name]}" for name in (schema.keys() - said.keys()) & _LIMITS]:
        told = (schema.get("description"), f"({', '.join(sorted(limits))})")
        said["description"] = " ".join(filter(None, told))
    return {"additionalProperties": False} | said if _has_properties(said) else said


def _closed_part(part: Any) -> Any:
    return closed(part) if isinstance(part, Mapping) else part


def _has_properties(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return "properties" in schema or kind == "object" or (isinstance(kind, list) and "object" in kind)


def _parts_of_schema(schema: Json) -> Iterator[Json]:
    found = [schema.get("items")]
    for name in (*_NAMED_PARTS, *_LISTED_PARTS):
        parts = schema.get(name)
        found += parts.values() if isinstance(parts, Mapping) else parts if isinstance(parts, list) else ()
    return (part for part in found if isinstance(part, dict))


def joined(parts: Sequence[Json]) -> str | list[Json]:
    """One text if there is nothing else: not every upstream takes parts."""
    if all(part["type"] == "text" for part in parts):
        return PART_END.join(part["text"] for part in parts)
    return list(parts)


def assistant_turn(texts: Iterable[str], calls: Sequence[Json], thoughts: Mapping[str, Iterable[str]]) -> Json:
    """A chat's turn of the assistant, from its texts, its calls, and thoughts by their field."""
    text = "".join(texts)
    turn: Json = {"role": "assistant", "content": None if calls and not text else text}
    turn |= {field: "".join(said) for field, said in thoughts.items()}
    return turn | {"tool_calls": list(calls)} if calls else turn


def _in_order(turns: Iterable[Json]) -> Iterator[Json]:
    """The turns with each result once, and nothing between calls and results.

    What is said before the first result goes before the calls, and what before the last goes after it.
    """
    calling: list[Json] = []
    waiting: list[Json] = []
    missing: set[str] = set()
    answered: set[str] = set()
    for turn in turns:
        role, answers = turn["role"], turn.get("tool_call_id", "")
        if role == "assistant":
            yield from (*calling, *waiting)
            missing = {call["id"] for call in turn.get("tool_calls") or ()}
            answered -= missing
            calling, waiting = [turn], []
        elif role == "tool" and answers not in answered:
            yield from (*(waiting if calling else ()), *calling, turn)
            waiting, calling = [] if calling else waiting, []
            missing.discard(answers)
            answered.add(answers)
        elif role != "tool":  # Semantic Kernel sends the results of earlier turns again
            waiting.append(turn)
        if not missing:
            yield from (*calling, *waiting)
            calling, waiting = [], []
    yield from (*calling, *waiting)


def results_after_calls(turns: Iterable[Json]) -> Iterator[Json]:
    """The turns as a chat has them: each result once, as a text, right after the turn with its call.

    Other dialects find a result by its id, whatever was said in between; its other parts, such as
    images, go into a user's message after it.
    """
    others: list[Json] = []
    for turn in _in_order(turns):
        if turn["role"] != "tool":
            if others:
                yield {"role": "user", "content": others}
                others = []
        elif isinstance(parts := turn["content"], list):
            texts = [part["text"] for part in parts if part["type"] == "text"]
            others += [part for part in parts if part["type"] != "text"]
            turn = turn | {"content": PART_END.join(texts)}
        yield turn
    if others:
        yield {"role": "user", "content": others}


class OpenCalls:
    """Calls of a turn that have no result yet, found by id or, without one, by name."""

    def __init__(self, calls: Iterable[Json] = ()) -> None:
        self._open = Counter[str]()
        self._ids: dict[str, deque[str]] = {}
        for call in calls:
            self._open[call["id"]] += 1
            for name in (call["function"]["name"], ""):
                self._ids.setdefault(name, deque()).append(call["id"])

    def answered_by(self, name: str, call_id: str | None) -> str | None:
        """The id of the call of that name ("": any) that a result answers, which is then no longer open."""
        same = self._ids.get(name, deque())
        while same and not self._open[same[0]]:
            same.popleft()
        found = call_id or (same[0] if same else "")
        if not self._open[found]:
            return None
        self._open[found] -= 1
        return found


_PIECE: Final = re.compile(r"\S*\s*")


def pieces_of(text: str) -> Iterator[str]:
    """A text word by word, each with the space after it, for a stream."""
    return filter(None, _PIECE.findall(text))
