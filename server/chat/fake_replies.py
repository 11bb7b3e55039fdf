"""Replies of the fake upstream in a form: JSON, calls of tools, a judge's values; names of faults.

As a judge it follows a rule over the question's text, in place of a model's opinion. The value of a proposal is the
share of its words that the task has, where the task is the conversation's first user message; an action that the agent
has already taken has the value 0. Only the line after "Action:" counts, if there is one. By criteria each verdict is
the digit below that value.
"""

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from qguide.qnet.chat_messages import text_of
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.judging.prompt import (
    CONVERSATION,
    HIGHEST,
    RANK_QUESTION,
    RUBRIC_FORM,
    RUBRIC_QUESTION,
    SCORE_QUESTION,
)
from qguide.qnet.judging.settings import REASON

Schema = Mapping[str, Any]
Fault = Literal[
    "",
    "hang",
    "garbage",
    "empty",
    "429",
    "quota",
    "policy",
    "context",
    "500",
    "503",
    "401",
    "ignore_n",
    "refuse_n",
    "reasoning",
    "half",
    "refuse_logprobs",
    "refuse_top_k",
    "chatty",
]
"""Faults that the fake upstream can have; "" is none."""

_IGNORED: Final = frozenset(
    (
        *("$defs", "$schema", "additionalProperties", "default", "definitions", "description", "examples", "title"),
        "required",  # every property is made
    )
)
_READ: Final = frozenset(
    (
        *("$ref", "anyOf", "const", "enum", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength"),
        *("minimum", "oneOf", "properties", "type"),
    )
)
_DEEPEST: Final = 16
_ITEMS: Final = 2
_LONGEST: Final = 1000
_ACTION = "Action:"


class UnfitFormatError(ValueError):
    """A response format that the fake upstream cannot answer in."""


def json_reply(response_format: Any, said: str, k: int) -> str | None:
    """The content of a reply in this format; None where it is plain text."""
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return json.dumps({"reply": said})
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            return json.dumps(_Values(schema, k).of(schema, "reply"))
    raise UnfitFormatError("response_format is not one of text, json_object and json_schema with a schema")


@dataclass(frozen=True, slots=True)
class _Values:
    """Values that fit the parts of one schema."""

    root: Schema
    k: int

    def of(self, schema: Any, name: str, depth: int = 0) -> Any:
        """A value of a part."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            raise UnfitFormatError(f"the schema of {name!r} is no object, or nested too deeply")
        if unknown := sorted(schema.keys() - _READ - _IGNORED):
            raise UnfitFormatError(
                f"the fake upstream makes no JSON for the keyword {unknown[0]!r} of {name!r}; leave it out, it knows "
                f"{', '.join(sorted(_READ))}"
            )
        match schema:
            case {"$ref": str(reference)}:
                return self.of(self._named(reference), name, depth + 1)
            case {"const": value}:
                return value
            case {"enum": [*values]} if values:
                return values[self.k % len(values)]
            case {"anyOf": [first, *_]} | {"oneOf": [first, *_]}:
                return self.of(first, name, depth + 1)
        return self._of_type(schema, name, depth)

    def _of_type(self, schema: Schema, name: str, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        match kind[0] if isinstance(kind, list) and kind else kind:
            case "object":
                parts = schema.get("properties", {}).items()
                return {key: self.of(part, key, depth + 1) for key, part in parts}
            case "array":
                least = max(min(_ITEMS, schema.get("maxItems", _ITEMS)), _least(schema, "minItems"))
                items = schema.get("items", {"type": "string"})
                return [self.of(items, f"{name} {i}", depth + 1) for i in range(least)]
            case "string":
                text = f"{name} {self.k}".ljust(_least(schema, "minLength"), ".")
                return text[: schema.get("maxLength")]
            case "integer" | "number":
                least = max(schema.get("minimum", self.k), self.k)
                return min(schema.get("maximum", least), least)
            case "boolean":
                return self.k % 2 == 0
            case "null":
                return None
        raise UnfitFormatError(f"{name!r} has no type that the fake upstream knows: {kind!r}")

    def _named(self, reference: str) -> Any:
        found: Any = self.root
        start, *steps = reference.split("/")
        for step in steps if start == "#" else ["nowhere"]:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found


def _least(schema: Schema, keyword: str) -> int:
    least = int(schema.get(keyword, 0))
    if least > _LONGEST:
        raise UnfitFormatError(f"{keyword} is {least:,}; the fake upstream makes {_LONGEST:,}")
    return least


def made_call(tool: Json, k: int) -> Json:
    """A call of a tool."""
    call = {"id": f"call_{uuid.uuid4().hex}", "type": tool["type"]}
    if tool["type"] == "custom":
        return call | {"custom": {"name": tool["custom"]["name"], "input": f"input {k}"}}
    function = tool["function"]
    schema = function.get("parameters") or {}
    arguments = {name: _argument(name, kind, k) for name, kind in schema.get("properties", {}).items()}
    return call | {"function": {"name": function["name"], "arguments": json.dumps(arguments)}}


def _argument(name: str, schema: Json, k: int) -> Any:
    if values := schema.get("enum") or schema.get("examples"):
        return values[k % len(values)]
    match schema.get("type"):
        case "integer" | "number":
            return k
        case "boolean":
            return k % 2 == 0
        case "array":
            one = _argument(name, schema.get("items") or {}, k)
            return [one] * _least(schema, "minItems")
        case "object":
            return {}
    return f"{name} {k}"


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """The answer to a judge's question."""

    text: str
    probabilities: Mapping[str, float]  # of the digits that a score lies between; empty for the others

    def choice(self, index: int, *, with_logprobs: bool) -> Json:
        """The answer as a choice of a completion."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": self.text},
            "logprobs": self.logprobs() if with_logprobs else None,
            "finish_reason": "stop",
        }

    def logprobs(self) -> Json | None:
        """OpenAI's `logprobs`, by which the mean digit is the rule's value; None for a ranking."""
        if not self.probabilities:
            return None
        top = [_token(digit, p) for digit, p in self.probabilities.items() if p > 0]
        token = _token(self.text, self.probabilities[self.text])
        return {"content": [{**token, "top_logprobs": top}], "refusal": None}


def read_question(messages: Sequence[Mapping[str, Any]]) -> JudgeReply | None:
    """The rule's answer to the last message; None if it is no question of a judge."""
    text = text_of(messages[-1].get("content"))
    if not text.startswith(CONVERSATION):
        return None
    objects = [json.loads(line) for line in text.split("\n") if line.startswith("{")]
    proposals = [entry["text"] for entry in objects if "role" not in entry]
    turns = [(entry["role"], entry["text"]) for entry in objects if "role" in entry]
    values = [proposal_value(turns, proposal) for proposal in proposals]
    if text.endswith(SCORE_QUESTION):
        return _score(values[0])
    _, asked, rubric = text.rpartition(RUBRIC_QUESTION)
    if asked:
        digits = dict.fromkeys(json.loads(rubric.rpartition(RUBRIC_FORM)[2]), int(values[0] * HIGHEST))
        return JudgeReply(json.dumps(digits | {REASON: f"{values[0]:.0%} of its words are the task's"}), {})
    if text.endswith(RANK_QUESTION.format(count=len(proposals))):
        order = sorted(range(len(values)), key=lambda i: -values[i])
        return JudgeReply(json.dumps([i + 1 for i in order]), {})
    return None


def proposal_value(turns: Sequence[tuple[str, str]], proposal: str) -> float:
    """The rule's value, in [0, 1]."""
    action = _action_of(proposal)
    if any(role == "assistant" and _action_of(text) == action for role, text in turns):
        return 0.0
    task = next((_words(text) for role, text in turns if role == "user"), set())
    words = _words(action)
    return len(words & task) / len(words) if words else 0.0


def _score(value: float) -> JudgeReply:
    """The digits around the value, with probabilities whose mean is the value."""
    low, share = divmod(value * HIGHEST, 1)
    probabilities = {str(int(low)): 1 - share}
    if share:
        probabilities[str(int(low) + 1)] = share
    return JudgeReply(max(probabilities, key=lambda digit: probabilities[digit]), probabilities)


def _token(digit: str, probability: float) -> Json:
    return {"token": digit, "logprob": math.log(probability), "bytes": list(digit.encode())}


def _action_of(text: str) -> str:
    return text.rpartition(_ACTION)[2].strip().lower()


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
