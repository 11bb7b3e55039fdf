"""A judge scores through the fake upstream, which judges by a rule."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidCandidatesError,
    JudgeAnswerError,
    JudgeBudgetError,
    JudgeBusyError,
    JudgeRefusedError,
    UpstreamError,
)
from qguide.qnet.judging.judge import Judge
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.types import Message, ScoreRequest
from qguide.qnet.work import Tenant, UpstreamCalls, working_for
from qguide.server.chat.fake_openai import FakeUpstream

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
    assert result.upstream == UpstreamCalls(3, 0, result.upstream.prompt_tokens, 3)
    assert result.computed_tokens == result.upstream.prompt_tokens + 3 > 3
    assert (upstream.asked[0]["temperature"], upstream.asked[0]["top_logprobs"]) == (0.0, 20)


async def test_an_upstream_that_refuses_probabilities_is_asked_without(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault = "refuse_logprobs"
    async with judging() as judge:
        first = await judge.score(request(SAID[0]))
        second = await judge.score(request(SAID[1]))
    assert first.q_values == (1.0,)
    assert second.q_values == (4 / 9,), "the digit itself: of two as likely the rule names the lower"
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
    assert again.upstream == UpstreamCalls(0, 1)
    assert (again.computed_tokens, again.cached_tokens) == (0, result.computed_tokens)


async def test_a_ranking_has_no_value_for_a_single_candidate(judging: Callable[..., Any]) -> None:
    async with judging(mode="rank") as judge:
        with pytest.raises(InvalidCandidatesError, match=r" 1 candidate, .* 2, .*'score'"):
            await judge.score(request(SAID[0]))


async def test_a_question_is_asked_once_also_by_requests_at_the_same_time(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging() as judge:
        results = await asyncio.gather(*(judge.score(request()) for _ in range(3)))
    assert len(upstream.asked) == 3
    assert sum(result.upstream.calls for result in results) == 3
    assert sum(result.upstream.cached_calls for result in results) == 6


async def test_callers_with_different_salts_do_not_share_answers(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging() as judge:
        for salt in ("a", "b", "a"):
            with working_for(Tenant(salt, salt)):
                await judge.score(request(SAID[0]))
    assert len(upstream.asked) == 2


async def test_what_cannot_be_read_is_an_error_and_is_asked_again(
    judging: Callable[..., Any], upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.fault, upstream.faults_left = "chatty", 1
    seen: list[str] = []
    async with judging() as judge:
        judge.observe = lambda outcome, spent: seen.append(outcome)
        with pytest.raises(JudgeAnswerError, match=r"0 to 9; .*prompt_file") as error:
            await judge.score(request(SAID[0]))
        assert "I should look" not in str(error.value), "it may quote the operator's prompt"
        assert "Thought: I should look" in caplog.text
        assert (await judge.score(request(SAID[0]))).q_values == (1.0,)
    assert seen == ["unparseable", "answered"]


async def test_a_budget_ends_the_questions_but_not_the_answers_that_are_known(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging(total_calls=2) as judge:
        await judge.score(request(*SAID[:2]))
        with pytest.raises(JudgeBudgetError, match=r"used 2 .*total_calls of 2;"):
            await judge.score(request())
        known = await judge.score(request(*SAID[:2]))
    assert known.q_values == pytest.approx(VALUES[:2])
    assert len(upstream.asked) == 2


@pytest.mark.parametrize("limits", [{"calls_per_hour": 2}, {"total_calls": 2}])
async def test_a_step_beyond_the_budget_sends_nothing_and_leaves_it_to_a_smaller_one(
    judging: Callable[..., Any], upstream: FakeUpstream, limits: dict[str, int]
) -> None:
    async with judging(**limits) as judge:
        with pytest.raises(JudgeBudgetError, match="needs 3;"):
            await judge.score(request())
        assert upstream.asked == []
        assert (await judge.score(request(*SAID[:2]))).q_values == pytest.approx(VALUES[:2])


async def test_a_question_of_two_steps_at_the_same_time_is_admitted_once(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging(total_calls=3) as judge:
        results = await asyncio.gather(*(judge.score(request()) for _ in range(3)))
    assert [result.q_values for result in results] == [pytest.approx(VALUES)] * 3
    assert len(upstream.asked) == 3


async def test_a_step_that_is_cancelled_gives_back_what_it_has_not_sent(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault, upstream.faults_left = "hang", 1
    async with judging(total_calls=4, parallel=1) as judge:
        step = asyncio.create_task(judge.score(request()))
        while not upstream.asked:
            await asyncio.sleep(0.01)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        assert (await judge.score(request())).q_values == pytest.approx(VALUES)


async def test_the_request_without_probabilities_counts_against_the_budget_too(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault = "refuse_logprobs"
    async with judging(total_calls=2) as judge:
        await judge.score(request(SAID[0]))
        with pytest.raises(JudgeBudgetError, match=r"used 2 .*total_calls of 2;"):
            await judge.score(request(SAID[1]))
    assert len(upstream.asked) == 2


async def test_a_refusal_for_another_cause_is_not_repeated_and_is_no_fault_of_the_caller(
    judging: Callable[..., Any], upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.fault = "policy"
    async with judging() as judge:
        with pytest.raises(JudgeRefusedError, match=r"\bj's .*\(content_policy_violation\)") as error:
            await judge.score(request(SAID[0]))
    assert len(upstream.asked) == 1
    assert "not allowed" not in str(error.value)
    assert "not allowed" in caplog.text


async def test_a_busy_upstream_is_no_quota_of_the_caller(judging: Callable[..., Any], upstream: FakeUpstream) -> None:
    upstream.fault = "quota"
    async with judging() as judge:
        with pytest.raises(JudgeBusyError) as error:
            await judge.score(request(SAID[0]))
    assert error.value.retry_after_s is None, "a quota does not come back by waiting"


async def test_a_conversation_beyond_the_judges_context_is_too_long(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    upstream.fault = "context"
    async with judging() as judge:
        with pytest.raises(HistoryTooLongError):
            await judge.score(request(SAID[0]))


async def test_a_failure_of_the_upstream_is_its_own_error(judging: Callable[..., Any], upstream: FakeUpstream) -> None:
    upstream.fault = "500"
    async with judging() as judge:
        with pytest.raises(UpstreamError, match=r"demo .*500"):
            await judge.score(request(SAID[0]))


async def test_observations_are_refused_with_the_reason(judging: Callable[..., Any]) -> None:
    tried = ScoreRequest(STATE, request(SAID[0]).candidates, observations=(STATE[:1],))
    async with judging() as judge:
        with pytest.raises(InvalidCandidatesError, match=r"candidates\[\]\.observation"):
            await judge.score(tried)
        with pytest.raises(InvalidCandidatesError, match="0 candidates"):
            await judge.score(ScoreRequest(STATE, ()))


async def test_the_digest_names_model_instructions_and_mode(judging: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "own.txt").write_text("Prefer short turns.")
    digests = []
    for settings in ({}, {"mode": "rank"}, {"prompt_file": tmp_path / "own.txt"}, {"parallel": 2}):
        async with judging(**settings) as judge:
            digests.append(judge.digest)
    assert len(set(digests)) == 3
    assert digests[3] == digests[0], "how many are asked at a time changes no value"


def test_parameters_that_the_judge_sets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parameters\n.* n, top_logprobs"):
        JudgeSettings.model_validate({"parameters": {"n": 2, "top_logprobs": 5}})


CRITERIA = {"progress": "nearer to the goal", "safety": "harms nothing"}


async def test_q_by_criteria_is_the_weighted_mean_of_the_verdicts(
    judging: Callable[..., Any], upstream: FakeUpstream
) -> None:
    async with judging(criteria=CRITERIA, weights={"progress": 2.0}) as judge:
        result = await judge.score(request(*SAID, SAID[0]))
        again = await judge.score(request(SAID[1]))
    assert result.q_values == pytest.approx((1.0, 4 / 9, 0.0, 1.0))
    assert [verdict.criteria for verdict in result.verdicts] == [
        {"progress": digit, "safety": digit} for digit in (9.0, 4.0, 0.0, 9.0)
    ]
    assert [verdict.reason[:4] for verdict in result.verdicts] == ["100%", "50% ", "0% o", "100%"]
    assert again.verdicts == result.verdicts[1:2], "verdicts and reasons are kept as well"
    assert len(upstream.asked) == 3
    assert "logprobs" not in upstream.asked[0]


async def test_weights_and_descriptions_make_another_judge(judging: Callable[..., Any]) -> None:
    same = {"progress": 1.0}
    digests = []
    for settings in (
        {},
        {"criteria": CRITERIA},
        {"criteria": CRITERIA | {"safety": "harms nobody"}},
        {"criteria": CRITERIA, "weights": {"progress": 2.0}},
        {"criteria": CRITERIA, "weights": same},
    ):
        async with judging(**settings) as judge:
            digests.append(judge.digest)
    assert len(set(digests)) == 4
    assert digests[1] == digests[4], "1 is the weight without one"


async def test_a_verdict_that_is_missing_fails_the_step(judging: Callable[..., Any], upstream: FakeUpstream) -> None:
    upstream.fault = "chatty"
    async with judging(criteria=CRITERIA) as judge:
        with pytest.raises(JudgeAnswerError, match=r"0 to 9 .*progress, safety; .*prompt_file"):
            await judge.score(request(SAID[0]))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mode": "rank", "criteria": CRITERIA}, "criteria .*'score'"),
        ({"criteria": {"reason": "why"}}, "named 'reason'"),
        ({"criteria": {"Two words": "x"}}, "criteria"),
        ({"criteria": {"progress": "two\nlines"}}, "criteria"),
        ({"criteria": {f"c{i}": "x" for i in range(9)}}, r"criteria\n.*too_long"),
        ({"criteria": CRITERIA, "weights": {"speed": 1}}, "weights .*'speed'"),
        ({"criteria": CRITERIA, "weights": {"progress": -1}}, "weights"),
        ({"criteria": CRITERIA, "weights": dict.fromkeys(CRITERIA, 0)}, "weights .* 0; .*criterion"),
        ({"weights": {"progress": 1}}, "weights .*'progress'"),
    ],
)
def test_criteria_that_mean_nothing_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        JudgeSettings.model_validate(settings)
