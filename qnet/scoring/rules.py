"""Scorers without a model: what is known of candidates before any Q.

    votes          share of the draws that act as the candidate does
    likelihood     share of the policy's likelihood
    validity       1 unless a tool call certainly breaks its tool's JSON schema, then 0

Each may stand alone, or before others: `validity+votes` takes the candidates of highest validity,
and of these the ones with most votes; `votes+embedded` is the majority, with its ties broken by Q.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast, get_args

from qguide.qnet.action_key import effects_of
from qguide.qnet.decision.prior import log_likelihoods
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.scoring.json_schema import conforms
from qguide.qnet.types import (
    Message,
    Scorer,
    ScoreRequest,
    ScoreResult,
    ToolCall,
    ranks,
    reads_observation,
)

RuleName = Literal["validity", "votes", "likelihood"]
RULES: Final[tuple[RuleName, ...]] = get_args(RuleName)

_BETWEEN: Final = "+"


def split_rules(source: str) -> tuple[tuple[RuleName, ...], str]:
    """The rules at the beginning of a Q model's source, and the source behind them, "" if none."""
    parts = source.split(_BETWEEN)
    number = next((i for i, part in enumerate(parts) if part not in RULES), len(parts))
    return cast("tuple[RuleName, ...]", tuple(parts[:number])), _BETWEEN.join(parts[number:])


def rule_values(rule: RuleName, request: ScoreRequest) -> tuple[float, ...]:
    """Value of each candidate by a rule."""
    match rule:
        case "validity":
            return tuple(float(is_valid(reply, request.tools)) for reply in request.candidates)
        case "votes":
            return _votes(request)
        case "likelihood":
            return _likelihoods(request)


def is_valid(reply: Message, tools: Sequence[Mapping[str, Any]]) -> bool:
    """True unless a call names a tool that is not offered, or its arguments break the schema.

    Args:
        tools: in OpenAI's shape; empty if unknown, and then only JSON is required.
    """
    functions = {name: own for own in map(_function, tools) if (name := own.get("name"))}
    return all(_is_valid_call(call, functions) for call in reply.tool_calls)


def rules_before(
    rules: Sequence[RuleName], request: ScoreRequest, result: ScoreResult
) -> ScoreResult:
    """A scorer's result with the values of the rules before it."""
    if not rules:
        return result
    own = zip(*(rule_values(rule, request) for rule in rules), strict=True)
    inner = result.rules or ((),) * len(request.candidates)
    return replace(result, rules=tuple((*a, *b) for a, b in zip(own, inner, strict=True)))


def result_by_rules(rules: Sequence[RuleName], request: ScoreRequest) -> ScoreResult:
    """The result of rules alone: the last one's values, behind the others."""
    *before, last = rules
    return rules_before(before, request, ScoreResult(rule_values(last, request), 0))


class RuleScorer:
    """A scorer whose values are those of the last rule, behind the others."""

    ranks = True

    def __init__(self, rules: Sequence[RuleName], *, name: str = "") -> None:
        self.name = name or _BETWEEN.join(rules)
        self._rules = tuple(rules)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Value of each candidate."""
        return [result_by_rules(self._rules, request) for request in requests]


class RuledScorer:
    """A scorer behind rules."""

    def __init__(self, rules: Sequence[RuleName], scorer: Scorer) -> None:
        self.name = _BETWEEN.join((*rules, scorer.name))
        self.inner = scorer
        self.ranks = ranks(scorer) or compares_draws(rules)
        self.reads_observation = reads_observation(scorer)
        self._rules = tuple(rules)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, and the values of the rules."""
        results = self.inner.score(requests)
        return [
            rules_before(self._rules, request, result)
            for request, result in zip(requests, results, strict=True)
        ]


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
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return False
    schema = functions.get(call.name, {}).get("parameters", True)
    return isinstance(arguments, dict) and conforms(arguments, schema)
