"""A judge scores through the fake upstream, which judges by a rule."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from qnet.errors import (
    InvalidCandidatesError,
    JudgeAnswerError,
    JudgeBudgetError,
    UpstreamError,
)
from qnet.judging.judge import Judge
from qnet.judging.settings import JudgeSettings
from qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qnet.tenant import Tenant, working_for
from qnet.types import Message, ScoreRequest
from qnet.usage import JudgeUsage
from server.chat.fake_openai import FakeUpstream

Address = tuple[FakeUpstream, str]
HISTORY = (Message("user", "take the green book"), Message("assistant", "Action: look"))
STATE = (*HISTORY, Message("user", "You see a desk and a green book."))
SAID = ("Action: take green book", "Action: take desk", "Action: look")
VALUES = (1.0, 0.5, 0.0)
"""By the rule: all words are the task's; one of two is; taken before."""


def request(*texts: str) -> ScoreRequest:
    return ScoreRequest(STATE, tuple(Message("assistant", text) for text in texts or SAID))


@pytest.fixture
def judging(address: Address, upstream: FakeUpstream) -> Callable[..., Any]:
    """Makes a judge of these settings, whose connections end with the block."""

    @asynccontextmanager
    async def judging(**settings: Any) -> AsyncIterator[Judge]:
        policy = OpenAICompatiblePolicy("demo", url=address[1], model="m")
        try:
            yield Judge("j", policy, JudgeSettings.model_validate(settings))
        finally:
            await policy.close()

    return judging


async def test_q_is_the_mean_of_the_digit_where_there_are_probabilities(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging() as judge:
        result = await judge.score(request(*SAID, SAID[0]))
    assert result.q_values == pytest.approx((*VALUES, VALUES[0]))
    assert len(upstream.asked) == 3, "equal candidates are judged once"
    assert result.judge == JudgeUsage(3, 0, result.judge.prompt_tokens, 3)
    assert result.computed_tokens == result.judge.prompt_tokens + 3 > 3
    assert (upstream.asked[0]["temperature"], upstream.asked[0]["top_logprobs"]) == (0.0, 20)


async def test_an_upstream_that_refuses_probabilities_is_asked_without(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault = "refuse_logprobs"
    async with judging() as judge:
        first = await judge.score(request(SAID[0]))
        second = await judge.score(request(SAID[1]))
    assert first.q_values == (1.0,)
    assert second.q_values == (4 / 9,) or second.q_values == (5 / 9,), "the digit itself"
    assert ["logprobs" in body for body in upstream.asked] == [True, False, False]


async def test_a_ranking_is_one_request_for_all_candidates_in_an_order_of_its_own(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging(mode="rank") as judge:
        result = await judge.score(request())
        again = await judge.score(request(*reversed(SAID)))
    assert result.q_values == (1.0, 0.5, 0.0)
    assert again.q_values == (0.0, 0.5, 1.0)
    assert len(upstream.asked) == 1, "the same candidates are the same question"
    assert again.judge == JudgeUsage(0, 1)
    assert (again.computed_tokens, again.cached_tokens) == (0, result.computed_tokens)


async def test_a_ranking_has_no_value_for_a_single_candidate(judging: Callable[..., Any]) -> None:
    async with judging(mode="rank") as judge:
        with pytest.raises(InvalidCandidatesError, match="has no value for a single one"):
            await judge.score(request(SAID[0]))


async def test_a_question_is_asked_once_also_by_requests_at_the_same_time(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging() as judge:
        results = await asyncio.gather(*(judge.score(request()) for _ in range(3)))
    assert len(upstream.asked) == 3
    assert sum(result.judge.calls for result in results) == 3
    assert sum(result.judge.cached_calls for result in results) == 6


async def test_callers_with_different_salts_do_not_share_answers(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging() as judge:
        for salt in ("a", "b", "a"):
            with working_for(Tenant(salt, salt)):
                await judge.score(request(SAID[0]))
    assert len(upstream.asked) == 2


async def test_what_cannot_be_read_is_an_error_and_is_asked_again(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault, upstream.faults_left = "chatty", 1
    seen: list[str] = []
    async with judging() as judge:
        judge.observe = lambda outcome, spent: seen.append(outcome)
        with pytest.raises(JudgeAnswerError, match=r"judge j answered 'Thought: I should look"):
            await judge.score(request(SAID[0]))
        assert (await judge.score(request(SAID[0]))).q_values == (1.0,)
    assert seen == ["unparseable", "answered"]


async def test_a_budget_ends_the_questions_but_not_the_answers_that_are_known(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging(total_calls=2, parallel=1) as judge:
        with pytest.raises(JudgeBudgetError, match="used 2 of its total_calls of 2"):
            await judge.score(request())
        known = await judge.score(request(*SAID[:2]))
    assert known.q_values == pytest.approx(VALUES[:2])
    assert len(upstream.asked) == 2


async def test_a_failure_of_the_upstream_is_its_own_error(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault = "500"
    async with judging() as judge:
        with pytest.raises(UpstreamError, match="upstream demo answered with 500"):
            await judge.score(request(SAID[0]))


async def test_observations_are_refused_with_the_reason(judging: Callable[..., Any]) -> None:
    tried = ScoreRequest(STATE, request(SAID[0]).candidates, observations=(STATE[:1],))
    async with judging() as judge:
        with pytest.raises(InvalidCandidatesError, match="judges an action before"):
            await judge.score(tried)
        with pytest.raises(InvalidCandidatesError, match="0 candidates"):
            await judge.score(ScoreRequest(STATE, ()))


async def test_the_digest_names_model_instructions_and_mode(
    judging: Callable[..., Any], tmp_path: Any
) -> None:
    (tmp_path / "own.txt").write_text("Prefer short turns.")
    digests = []
    for settings in ({}, {"mode": "rank"}, {"prompt_file": tmp_path / "own.txt"}, {"parallel": 2}):
        async with judging(**settings) as judge:
            digests.append(judge.digest)
    assert len(set(digests)) == 3
    assert digests[3] == digests[0], "how many are asked at a time changes no value"


def test_parameters_that_the_judge_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="the judge sets n, top_logprobs itself"):
        JudgeSettings.model_validate({"parameters": {"n": 2, "top_logprobs": 5}})
