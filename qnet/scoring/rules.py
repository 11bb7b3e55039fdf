"""Scorers without a model: what is known of candidates before any Q.

    votes          share of the draws that act as the candidate does
    likelihood     share of the policy's likelihood
    validity       1 unless a tool call certainly breaks its tool's JSON schema, or what the
                   candidate was answered tells of an error, then 0

Each may stand alone, or before others: `validity+votes` takes the candidates of highest validity,
and of these the ones with most votes; `votes+embedded` is the majority, with its ties broken by Q.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast, get_args

from qguide.qnet.chat_messages import effects_of, json_object
from qguide.qnet.decision.selection import log_likelihoods
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.types import History, Message, Scorer, ScoreRequest, ScoreResult, ToolCall

RuleName = Literal["validity", "votes", "likelihood"]
RULES: Final[tuple[RuleName, ...]] = get_args(RuleName)

ERROR: Final = re.compile(
    r"error|exception|traceback|invalid|not found|no such|unknown|don't understand|is wrong|fail", re.IGNORECASE
)
"""Words by which an answer tells of an error."""
_BETWEEN: Final = "+"
_MOST_READ: Final = 4_000


def split_rules(source: str) -> tuple[tuple[RuleName, ...], str]:
    """The rules at the beginning of a Q model's source, and the source behind them, "" if none."""
    parts = source.split(_BETWEEN)
    number = next((i for i, part in enumerate(parts) if part not in RULES), len(parts))
    return cast("tuple[RuleName, ...]", tuple(parts[:number])), _BETWEEN.join(parts[number:])


def rule_values(rule: RuleName, request: ScoreRequest) -> tuple[float, ...]:
    """Value of each candidate by a rule."""
    match rule:
        case "validity":
            answers = request.observations or ((),) * len(request.candidates)
            tried = zip(request.candidates, answers, strict=True)
            return tuple(float(is_valid(reply, request.tools) and not failed(answer)) for reply, answer in tried)
        case "votes":
            return _votes(request)
        case "likelihood":
            return _likelihoods(request)


def is_valid(reply: Message, tools: Sequence[Mapping[str, Any]]) -> bool:
    """True unless a call names a tool that is not offered or breaks its schema; without tools only JSON is required."""
    functions = {name: own for own in map(_function, tools) if (name := own.get("name"))}
    return all(_is_valid_call(call, functions) for call in reply.tool_calls)


def failed(answer: History) -> bool:
    """True if an answer to an action tells of an error."""
    return any(ERROR.search(message.content[:_MOST_READ]) for message in answer)


def rules_before(rules: Sequence[RuleName], request: ScoreRequest, result: ScoreResult) -> ScoreResult:
    """A scorer's result with the values of the rules before it, of which there is one or more."""
    own = zip(*(rule_values(rule, request) for rule in rules), strict=True)
    inner = result.rules or ((),) * len(request.candidates)
    return replace(result, rules=tuple((*a, *b) for a, b in zip(own, inner, strict=True)))


def result_by_rules(rules: Sequence[RuleName], request: ScoreRequest) -> ScoreResult:
    """The result of rules alone: the last one's values, behind the others."""
    *before, last = rules
    result = ScoreResult(rule_values(last, request), 0)
    return rules_before(before, request, result) if before else result


class RuleScorer(Scorer):
    """A scorer whose values are those of the last rule, behind the others."""

    ranks = True

    def __init__(self, rules: Sequence[RuleName]) -> None:
        self.name = _BETWEEN.join(rules)
        self._rules = tuple(rules)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Value of each candidate."""
        return [result_by_rules(self._rules, request) for request in requests]


class RuledScorer(Scorer):
    """A scorer behind rules."""

    def __init__(self, rules: Sequence[RuleName], scorer: Scorer) -> None:
        self.name = _BETWEEN.join((*rules, scorer.name))
        self.inner = scorer
        self.ranks = scorer.ranks or compares_draws(rules)
        self.reads_observation = scorer.reads_observation
        self._rules = tuple(rules)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, and the values of the rules."""
        results = self.inner.score(requests)
        return [rules_before(self._rules, request, result) for request, result in zip(requests, results, strict=True)]


def compares_draws(rules: Sequence[RuleName]) -> bool:
    """True if a rule's values mean nothing beyond the candidates of one request."""
    return bool({"votes", "likelihood"} & set(rules))


def _votes(request: ScoreRequest) -> tuple[float, ...]:
    counts = request.counts or (1,) * len(request.candidates)
    effects = effects_of(request.candidates)
    votes: Counter[int] = Counter()
    for effect, count in zip(effects, counts, strict=True):
        votes[effect] += count
    total = max(votes.total(), 1)
    return tuple(votes[effect] / total for effect in effects)


def _likelihoods(request: ScoreRequest) -> tuple[float, ...]:
    known = [logprob for logprob in request.logprobs if logprob is not None]
    if not known or len(known) < len(request.candidates):
        raise ScorerUnavailableError(
            "a candidate has no log-likelihood, by which the Q model 'likelihood' chooses; ask the "
            "upstream for logprobs, or use 'votes'"
        )
    effects = effects_of(request.candidates)
    return tuple(map(math.exp, log_likelihoods(request.candidates, effects, known)))


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name and schema of a tool; a custom one has no schema, and another shape has neither."""
    own = tool.get("function") or tool.get("custom") or tool
    return own if isinstance(own, Mapping) and isinstance(own.get("name"), str) else {}


def _is_valid_call(call: ToolCall, functions: Mapping[str, Mapping[str, Any]]) -> bool:
    if functions and call.name not in functions:
        return False
    if call.kind == "custom":
        return True
    arguments = json_object(call.arguments or "{}")
    schema = functions.get(call.name, {}).get("parameters", True)
    return arguments is not None and conforms(arguments, schema)


MOST_CHECKS: Final = 10_000
"""Values compared with schemas in one check; schemas that refer to themselves have no end."""
_MOST_LEVELS: Final = 100

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
}


def conforms(value: object, schema: object) -> bool:
    """True unless the value certainly breaks the schema.

    Args:
        value: what JSON can hold.
        schema: any value; what is no schema refuses nothing. Read are type, enum, const,
            properties, required, additionalProperties, items, the limits of numbers and lengths,
            anyOf, oneOf (as anyOf), allOf and references within the schema.
    """
    return _Check(schema).passes(value, schema)


class _Check:
    """One check, with what is left of its work."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MOST_CHECKS

    def passes(self, value: object, schema: object, depth: int = 0) -> bool:
        self._left -= 1
        if self._left < 0 or depth > _MOST_LEVELS:
            return True
        if schema is False:
            return False
        if not isinstance(schema, Mapping):
            return True
        self._left -= len(_listed(schema.get("enum"))) + len(_listed(schema.get("required")))
        if isinstance(reference := schema.get("$ref"), str):
            return self.passes(value, self._referred(reference), depth + 1)
        if schema.get("nullable") is True and value is None:
            return True
        named = schema.get("type")
        names = [named] if isinstance(named, str) else _listed(named)
        return (
            (not names or any(_is_a(value, name) for name in names))
            and _is_listed(value, schema)
            and _is_within(value, schema)
            and self._combines(value, schema, depth + 1)
            and self._holds(value, schema, depth + 1)
        )

    def _referred(self, reference: str) -> object:
        """The part of the schema that a reference such as `#/$defs/Point` names."""
        part = self._root
        for name in reference.removeprefix("#").strip("/").split("/"):
            if name and not (reference.startswith("#") and isinstance(part, Mapping)):
                return True
            if name and isinstance(part, Mapping):
                part = part.get(name.replace("~1", "/").replace("~0", "~"), True)
        return part

    def _combines(self, value: object, schema: Mapping[str, Any], depth: int) -> bool:
        everyone = _listed(schema.get("allOf"))
        if not all(self.passes(value, part, depth) for part in everyone):
            return False
        choices = [_listed(schema.get(name)) for name in ("anyOf", "oneOf")]
        return all(not parts or any(self.passes(value, part, depth) for part in parts) for parts in choices)

    def _holds(self, value: object, schema: Mapping[str, Any], depth: int) -> bool:
        if isinstance(value, list):
            items = schema.get("items", True)
            return all(self.passes(item, items, depth) for item in value)
        if not isinstance(value, dict):
            return True
        if any(isinstance(n, str) and n not in value for n in _listed(schema.get("required"))):
            return False
        own, others = schema.get("properties"), schema.get("additionalProperties", True)
        known = own if isinstance(own, Mapping) else {}
        if "patternProperties" in schema:
            others = True
        return all(self.passes(part, known.get(name, others), depth) for name, part in value.items())


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _is_a(value: object, name: object) -> bool:
    if name == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return (isinstance(value, int) and not isinstance(value, bool)) or whole
    if not isinstance(name, str) or name not in _TYPES:
        return True
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _is_listed(value: object, schema: Mapping[str, Any]) -> bool:
    allowed = schema.get("enum")
    if isinstance(allowed, list) and not any(_equal(value, one) for one in allowed):
        return False
    return "const" not in schema or _equal(value, schema["const"])


def _equal(a: object, b: object) -> bool:
    """Equality of JSON, in which true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return a == b


def _is_within(value: object, schema: Mapping[str, Any]) -> bool:
    """True if a number or the length of a text or a list is within its limits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        limits = ("minimum", "maximum")
        above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
        if (above is not None and value <= above) or (below is not None and value >= below):
            return False
        return _between(value, schema, *limits)
    if isinstance(value, str):
        return _between(len(value), schema, "minLength", "maxLength")
    if isinstance(value, list):
        return _between(len(value), schema, "minItems", "maxItems")
    return True


def _between(value: float, schema: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = _number(schema, least), _number(schema, most)
    return (low is None or value >= low) and (high is None or value <= high)


def _number(schema: Mapping[str, Any], name: str) -> float | None:
    limit = schema.get(name)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None
