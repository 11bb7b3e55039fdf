"""From a history to an action: sample, score, select."""

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pytest

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.guide import NO_DEADLINE, Deadline, guide
from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.device.scoring_worker import ScoringWorker
from qguide.qnet.errors import HistoryTooLongError, InvalidCandidatesError, ScorerUnavailableError
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import AsyncScorer, History, Message, Policy, Sampling, ScoreRequest, ScoreResult
from tests.support.tiny_models import WORDS, policy_model, q_model

TASK = (Message("user", "put a mug in shelf 1"),)


async def act(
    history: History, policy: Policy, scorer: AsyncScorer, *, deadline: Deadline = NO_DEADLINE, **how: Any
) -> Decision:
    return await guide(history, policy, scorer, Guidance(**how), deadline=deadline)


@pytest.fixture
def thread() -> Iterator[DeviceThread]:
    thread = DeviceThread()
    yield thread
    thread.close()


async def test_the_candidate_with_the_highest_q_is_the_action(thread: DeviceThread) -> None:
    scorer = ScoringWorker(ScriptedScorer({"inventory": 0.2, "desk": 0.9}), thread)
    decision = await act(TASK, ScriptedPolicy(), scorer, num_candidates=3, sampling=Sampling())
    assert decision.action.content.endswith("go to desk 1")
    assert decision.q_values == (0.0, 0.2, 0.9)
    assert (decision.chosen, decision.reason) == (2, "highest_q")


async def test_equal_candidates_are_scored_once_and_have_the_same_q(thread: DeviceThread) -> None:
    policy = ScriptedPolicy(["Action: look", "Action: look", "Action: wait"])
    scorer = ScoringWorker(ScriptedScorer({"look": 0.7}), thread)
    decision = await act(TASK, policy, scorer, num_candidates=4, sampling=Sampling())
    assert decision.q_values == (0.7, 0.7, 0.0, 0.7)
    assert (decision.distinct_candidates, decision.reason) == (2, "highest_q")
    words = len(TASK[0].content.split()) + 4
    assert decision.usage.scored_tokens == words


async def test_candidates_that_are_all_the_same_are_not_scored(thread: DeviceThread) -> None:
    policy = ScriptedPolicy(["Action: look"])
    scorer = ScoringWorker(ScriptedScorer({"look": 0.7}), thread)
    decision = await act(TASK, policy, scorer, num_candidates=4, sampling=Sampling())
    assert decision.q_values is None
    assert (decision.distinct_candidates, decision.reason) == (1, "unanimous")
    assert (decision.usage.scored_tokens, decision.unguided) == (0, None)


class _FailingScorer:
    """Raises what it is given, or is silent."""

    name = "failing"

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def score(self, request: ScoreRequest) -> ScoreResult:
        if self._error is None:
            await asyncio.sleep(60)
            raise AssertionError("nobody waits that long")
        raise self._error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ScorerUnavailableError("the thread is dead"), "the thread is dead"),
        (HistoryTooLongError("history has 9,999 tokens"), "history has 9,999 tokens"),
        (RuntimeError("CUDA out of memory on 'a secret'"), "the Q model failed"),
        (None, "no answer within 1 s, candidates were still being scored; ask for less or try again later"),
    ],
)
async def test_a_fallback_takes_the_first_candidate_and_says_why(error: Exception | None, why: str) -> None:
    decision = await act(
        TASK,
        ScriptedPolicy(),
        _FailingScorer(error),
        num_candidates=3,
        sampling=Sampling(),
        fallback="first",
        deadline=Deadline.after(1.0) if error is None else NO_DEADLINE,
    )
    assert (decision.chosen, decision.reason, decision.q_values) == (0, "fallback", None)
    assert decision.unguided == why
    assert len(decision.candidates) == 3


@pytest.mark.parametrize("error", [ScorerUnavailableError("the thread is dead"), None])
async def test_without_a_fallback_there_is_no_action(error: Exception | None) -> None:
    with pytest.raises(ScorerUnavailableError, match=r"thread|within 0\.2 s"):
        await act(
            TASK,
            ScriptedPolicy(),
            _FailingScorer(error),
            num_candidates=2,
            sampling=Sampling(),
            deadline=Deadline.after(0.2) if error is None else NO_DEADLINE,
        )


async def test_without_a_fallback_a_bug_is_raised_as_it_is() -> None:
    scorer = _FailingScorer(RuntimeError("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="CUDA"):
        await act(TASK, ScriptedPolicy(), scorer, num_candidates=2, sampling=Sampling())


async def test_a_q_that_is_no_number_is_no_guidance(thread: DeviceThread) -> None:
    scorer = ScoringWorker(ScriptedScorer({"look": math.nan}), thread)
    decision = await act(TASK, ScriptedPolicy(), scorer, num_candidates=3, sampling=Sampling(), fallback="first")
    assert decision.q_values is None
    assert decision.unguided == "a Q-value is nan; the Q model is broken"


async def test_real_models_give_the_q_of_the_plain_scorer(thread: DeviceThread) -> None:
    loaded = q_model()
    policy = LocalPolicy(policy_model(), thread=thread)
    scorer = ScoringWorker(SharedPrefixScorer(loaded), thread)
    sampling = Sampling(temperature=1.0, max_tokens=8, seed=5)
    history: History = (Message("user", " ".join(WORDS * 3)),)
    for _ in range(3):
        decision = await act(history, policy, scorer, num_candidates=3, sampling=sampling)
        drawn = tuple(candidate.message for candidate in decision.candidates)
        [plain] = NaiveScorer(loaded).score([ScoreRequest(history, drawn)])
        assert decision.q_values == pytest.approx(plain.q_values, abs=1e-5)
        assert decision.chosen == plain.q_values.index(max(plain.q_values))
        assert decision.usage.completion_tokens == sum(candidate.completion_tokens for candidate in decision.candidates)
        assert decision.timings.sample_ms > 0 < decision.timings.score_ms
        history = (*history, decision.action, Message("user", "you see desk"))
    assert decision.usage.cached_tokens > len(WORDS) * 3


async def test_fewer_than_one_candidate_is_refused(thread: DeviceThread) -> None:
    scorer = ScoringWorker(ScriptedScorer({}), thread)
    with pytest.raises(InvalidCandidatesError, match="num_candidates is 0"):
        await act(TASK, ScriptedPolicy(), scorer, num_candidates=0, sampling=Sampling())


async def test_a_history_that_does_not_fit_is_the_callers_error(thread: DeviceThread) -> None:
    policy = LocalPolicy(policy_model(context=32), thread=thread)
    scorer = ScoringWorker(ScriptedScorer({}), thread)
    long = (Message("user", " ".join(WORDS * 9)),)
    with pytest.raises(HistoryTooLongError, match="shorten"):
        await act(long, policy, scorer, num_candidates=2, sampling=Sampling())
