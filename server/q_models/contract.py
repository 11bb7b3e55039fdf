"""Contract of every scorer, as checks over a few requests (`qguide scorer check`)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isclose, isfinite

from qguide.qnet.contract import Check, Finding, findings_of, require
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import Message, ScoreRequest, ToolCall
from qguide.server.q_models.build import version_and_source
from qguide.server.settings.settings import Settings

_TOLERANCE = 1e-3  # of two values of one candidate; passes of another shape round otherwise

_TASK = Message("user", "You see a mug 1 and a desk 1. Your task is to: put the mug on the desk")
_ACTIONS = ("Action: take mug 1", "Action: go to desk 1", "Action: look")
_CALLS = tuple(
    Message("assistant", "", tool_calls=(ToolCall("take", arguments),))
    for arguments in ('{"what": "mug 1"}', '{"what": "desk 1"}')
)


class ScorerSubject:
    """A scorer under the contract, with the requests that try it."""

    def __init__(self, scorer: CachingScorer) -> None:
        self.scorer = scorer
        replies = tuple(Message("assistant", text) for text in _ACTIONS)
        answered = (replies[0], Message("user", "You pick up the mug 1."))
        self.first = self._request((_TASK,), replies)
        self.later = self._request((_TASK, *answered), replies[1:])
        self.calls = self._request((_TASK,), _CALLS)

    def values(self, *requests: ScoreRequest) -> list[tuple[float, ...]]:
        """The Q-values of each request, scored in one batch."""
        return [result.q_values for result in self.scorer.score(requests)]

    def _request(self, history: tuple[Message, ...], replies: Sequence[Message]) -> ScoreRequest:
        observed = tuple((Message("user", "Nothing happens."),) for _ in replies)
        reads = self.scorer.reads_observation
        return ScoreRequest(history, tuple(replies), observations=observed if reads else ())


def _one_value_a_candidate(subject: ScorerSubject) -> None:
    requests = (subject.first, subject.later)
    found = subject.values(*requests)
    require(len(found) == len(requests), f"{len(requests)} requests have {len(found)} results")
    for request, values in zip(requests, found, strict=True):
        asked = len(request.candidates)
        require(len(values) == asked, f"{asked} candidates have {len(values)} values")
        require(all(map(isfinite, values)), f"the values {values} are not all finite")


def _the_same_again(subject: ScorerSubject) -> None:
    once, again = subject.values(subject.first), subject.values(subject.first)
    _require_same("a second call", once[0], again[0])


def _the_same_in_a_batch(subject: ScorerSubject) -> None:
    [alone], [together, _] = (subject.values(subject.first), subject.values(subject.first, subject.later))
    _require_same("a batch with another request", alone, together)


def _the_same_in_any_order(subject: ScorerSubject) -> None:
    if subject.scorer.ranks:
        return  # its values order one list, as that list came
    first = subject.first
    turned = replace(first, candidates=first.candidates[::-1], observations=first.observations[::-1])
    [values], [reversed_values] = subject.values(subject.first), subject.values(turned)
    _require_same("candidates in reverse order", values, reversed_values[::-1])


def _calls_of_tools(subject: ScorerSubject) -> None:
    [values] = subject.values(subject.calls)
    require(len(values) == len(_CALLS), f"{len(_CALLS)} calls have {len(values)} values")


def _not_all_alike(subject: ScorerSubject) -> None:
    [values] = subject.values(subject.first)
    alike = all(one == other for one, other in pairwise(values))
    require(not alike, f"three different actions all have the value {values[0]:g}")


def _require_same(where: str, one: Sequence[float], other: Sequence[float]) -> None:
    same = len(one) == len(other) and all(
        isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) for a, b in zip(one, other, strict=True)
    )
    require(same, f"{where} changes the values {tuple(one)} to {tuple(other)}")


CHECKS = (
    Check(
        "each candidate has one finite value",
        _one_value_a_candidate,
        "return a ScoreResult for each request, with a number for each candidate, in their order",
    ),
    Check(
        "a second call gives the same values", _the_same_again, "take randomness and state between calls out of `score`"
    ),
    Check(
        "a request has the values in a batch that it has alone",
        _the_same_in_a_batch,
        "score each request by itself, or mask what others pad",
    ),
    Check(
        "the order of candidates changes no value",
        _the_same_in_any_order,
        "score each candidate by itself, or set `ranks = True`",
    ),
    Check(
        "candidates may be calls of tools", _calls_of_tools, "read `tool_calls` of a candidate, whose text may be empty"
    ),
    Check(
        "different actions do not all have one value",
        _not_all_alike,
        "let the value depend on the candidate; a scorer that cannot tell any apart guides nothing",
    ),
)


def build_scorer(source: str) -> CachingScorer:
    """The scorer of a source of `QGUIDE_Q_MODELS`, outside of a server."""
    _, origin = version_and_source(Settings(), source, source)
    return origin.build()


def check_scorer(scorer: CachingScorer) -> list[Finding]:
    """Run every check."""
    return findings_of(CHECKS, ScorerSubject(scorer))
