"""Steps that weigh Q against what the policy prefers, and steps whose Q tells nothing."""

import asyncio
from collections.abc import Sequence

import pytest

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.guide import guide
from qguide.qnet.decision.threshold import Threshold
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.types import Candidate, Message, Sampling, ScoreRequest, ScoreResult
from tests.support.listed_models import Drawn, Known

HISTORY = (Message("user", "task"),)


class Broken:
    """Scores nothing."""

    name = "broken"

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Fail."""
        raise ScorerUnavailableError("the Q model is away")


def candidates(*texts: str, logprobs: Sequence[float | None] = ()) -> list[Candidate]:
    logs = list(logprobs) or [None] * len(texts)
    return [Candidate(Message("assistant", text), 1, log) for text, log in zip(texts, logs, strict=True)]


def decided(drawn: Sequence[Candidate], scorer: Known | Broken, guidance: Guidance | None = None) -> Decision:
    guidance = guidance or Guidance(len(drawn), Sampling(), selection="posterior", tau=0.1)
    return asyncio.run(guide(HISTORY, Drawn(drawn), scorer, guidance))


def test_votes_outweigh_a_slightly_higher_q() -> None:
    decision = decided(candidates("a", "b", "a", "a"), Known({"a": 0.5, "b": 0.55}))
    assert (decision.chosen, decision.reason, decision.guided) == (0, "highest_posterior", True)
    assert decision.posterior is not None
    assert decision.posterior[0] > decision.posterior[1]
    assert decision.shares == pytest.approx((0.7, 0.3, 0.7, 0.7))
    assert decision.tau == 0.1


def test_a_much_higher_q_outweighs_the_votes() -> None:
    decision = decided(candidates("a", "b", "a", "a"), Known({"a": 0.1, "b": 0.9}))
    assert decision.chosen == 1


def test_argmax_has_no_posterior() -> None:
    guidance = Guidance(3, Sampling())
    decision = decided(candidates("a", "b", "a"), Known({"a": 0.5, "b": 0.55}), guidance)
    assert (decision.chosen, decision.reason, decision.tau) == (1, "highest_q", None)
    assert decision.posterior is None
    assert decision.shares == pytest.approx((2.5 / 4, 1.5 / 4, 2.5 / 4))


def test_where_q_is_the_same_for_all_the_votes_decide_and_it_is_not_guided() -> None:
    for selection in ("argmax", "posterior"):
        guidance = Guidance(3, Sampling(), selection=selection)
        decision = decided(candidates("a", "b", "b"), Known({"a": 0.5, "b": 0.5}), guidance)
        assert (decision.chosen, decision.reason, decision.guided) == (1, "likeliest", False)
        assert "the same value" in str(decision.unguided_reason)
        assert decision.q_values == (0.5, 0.5, 0.5)


def test_without_a_q_the_likeliest_is_taken_and_of_equal_ones_the_first() -> None:
    guidance = Guidance(4, Sampling(first_greedy=True), fallback="first")
    for texts, chosen in (("abcb", 1), ("abcd", 0), ("abba", 0)):
        decision = decided(candidates(*texts), Broken(), guidance)
        assert (decision.chosen, decision.reason, decision.guided) == (chosen, "fallback", False)


def test_the_likelihood_may_be_the_prior() -> None:
    guidance = Guidance(3, Sampling(), selection="posterior", tau=0.1, prior="likelihood")
    drawn = candidates("a", "b", "b", logprobs=(-1.0, -5.0, -5.0))
    decision = decided(drawn, Known({"a": 0.5, "b": 0.6}), guidance)
    assert decision.chosen == 0
    assert (decision.prior and decision.prior.by, decision.warnings) == ("likelihood", ())


def test_without_logprobs_votes_stand_in() -> None:
    guidance = Guidance(3, Sampling(), selection="posterior", tau=0.1, prior="likelihood")
    decision = decided(candidates("a", "b", "b"), Known({"a": 0.5, "b": 0.45}), guidance)
    assert decision.chosen == 1
    assert decision.prior_by == "votes"


def test_the_scorer_is_told_counts_logprobs_and_tools() -> None:
    scorer = Known({"a": 0.5, "b": 0.6})
    tool = {"type": "function", "function": {"name": "look"}}
    sampling = Sampling(parameters={"tools": [tool]})
    decided(candidates("a", "b", "a", logprobs=(-1.0, -2.0, -1.0)), scorer, Guidance(3, sampling))
    (request,) = scorer.requests
    assert (request.counts, request.logprobs) == ((2, 1), (-1.0, -2.0))
    assert request.tools == (tool,)


def test_a_candidate_behind_a_rule_is_never_taken_and_ranks_last() -> None:
    scorer = Known({"a": 0.9, "b": 0.2, "c": 0.3}, rules={"a": 0.0, "b": 1.0, "c": 1.0})
    decision = decided(candidates("a", "b", "c"), scorer)
    assert decision.action.content == "c"
    assert decision.ranked == [2, 1, 0]
    assert decision.posterior is not None
    assert decision.posterior[0] == 0


def test_candidates_of_another_policy_are_compared_by_q_alone() -> None:
    guidance = Guidance(3, Sampling(), selection="posterior", tau=1.0, threshold=Threshold(0.5, ("refine",), 1))
    drawn = candidates("a", "b", "a", "better")
    decision = decided(drawn, Known({"a": 0.2, "b": 0.1, "better": 0.6}), guidance)
    assert (decision.action.content, decision.reason) == ("better", "highest_q")


def test_the_ranking_follows_the_posterior() -> None:
    decision = decided(candidates("a", "b", "c", "b", "b"), Known({"a": 0.4, "b": 0.5, "c": 0.45}))
    assert decision.ranked == [1, 2, 0, 3, 4]
