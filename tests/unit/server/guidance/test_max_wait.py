"""Steps that are decided while candidates are still being drawn, and those that the caller ends."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.guide import guide
from qguide.qnet.decision.threshold import Threshold
from qguide.qnet.errors import UpstreamError
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Candidate, History, Message, Policy, Sampling, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage, record_usage, taker
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.support.clock import without_waiting
from tests.unit.server.conftest import FAKES, Serve

TASK = (Message("user", "Go."),)
CHAT = [{"role": "user", "content": "Your task is to: take the mug."}]
SLOW_S = 3600.0
NEVER = 60.0


class Uneven:
    """Hands over each candidate after its own time, the first of them greedy if that is asked for."""

    name = "uneven"

    def __init__(self, *drawn: tuple[str, float]) -> None:
        self.drawn = drawn
        self.given_up: list[str] = []

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw all at once."""
        greedy = [sampling.first_greedy and not k for k in range(n)]
        return list(await asyncio.gather(*map(self._one, self.drawn[:n], greedy)))

    async def _one(self, drawn: tuple[str, float], greedy: bool) -> Candidate:
        text, seconds = drawn
        spent = TokenUsage(10, 1)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.given_up.append(text)
            record_usage(TokenUsage(10, 0))  # what the stream had told
            raise
        record_usage(spent)
        candidate = Candidate(Message("assistant", text), 1, spent=spent, greedy=greedy)
        if take := taker():
            take([candidate])
        return candidate


class Lengths:
    """Q is a text's length in tenths; remembers what was scored at a time."""

    name = "lengths"

    def __init__(self) -> None:
        self.scored: list[list[str]] = []

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score at once."""
        self.scored.append([candidate.text for candidate in request.candidates])
        return ScoreResult(tuple(len(one.text) / 10 for one in request.candidates), 1)


async def taken(policy: Policy, n: int, scorer: Lengths | None = None, **how: Any) -> Decision:
    sampling = how.pop("sampling", Sampling())
    batch = how.pop("batch", n)
    guidance = Guidance(num_candidates=n, sampling=sampling, batch=batch, **how)
    return await guide(TASK, policy, scorer or Lengths(), guidance)


def texts(decision: Decision) -> list[str]:
    return [candidate.message.text for candidate in decision.candidates]


@without_waiting
async def test_candidates_are_scored_while_others_are_drawn_and_the_rest_is_given_up() -> None:
    policy, scorer = Uneven(("a", 0.0), ("bbb", 0.0), ("cc", 0.5), ("dddd", NEVER)), Lengths()
    decision = await taken(policy, 4, scorer, max_wait_s=1.5)
    assert scorer.scored == [["a", "bbb"], ["cc"]]  # the first alone needs no Q
    assert (decision.action.text, texts(decision)) == ("bbb", ["a", "bbb", "cc"])
    assert (decision.draws_saved, policy.given_up) == (1, ["dddd"])
    assert decision.warnings == ("3 of 4 candidates came within max_wait_s (1.5 s)",)
    assert (decision.usage.prompt_tokens, decision.usage.completion_tokens) == (40, 3)


@without_waiting
async def test_a_step_waits_for_its_first_candidate_and_for_as_many_as_are_answered() -> None:
    one, two = (Uneven(*drawn, ("ccc", NEVER)) for drawn in ([("a", 0.2)], [("a", 0.2), ("bb", 0.3)]))
    assert texts(await taken(one, 2, max_wait_s=0.01)) == ["a"]
    assert texts(await taken(two, 3, max_wait_s=0.01, at_least=2)) == ["a", "bb"]


@without_waiting
async def test_the_answer_leaves_once_none_of_the_rest_can_win() -> None:
    policy = Uneven(("a" * 10, 0.0), ("b", NEVER), ("c", NEVER))
    decision = await taken(policy, 3, until=UntilDecided(highest_q=1.0), max_wait_s=NEVER / 2)
    assert (texts(decision), decision.draws_saved, decision.warnings) == (["a" * 10], 2, ())
    votes = Uneven(("a", 0.0), ("a", 0.0), ("b", NEVER))
    assert texts(await taken(votes, 3, until=UntilDecided(), compares=True)) == ["a", "a"]


@pytest.mark.parametrize("how", [{"max_wait_s": NEVER}, {"until": UntilDecided(highest_q=9.0)}])
@without_waiting
async def test_candidates_that_come_while_others_are_scored_are_not_drawn_again(how: dict[str, Any]) -> None:
    drawn = asyncio.Event()

    class Once(Uneven):
        async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
            assert not drawn.is_set()
            came = await super().sample(history, n=n, sampling=sampling)
            drawn.set()
            return came

    class Slow(Lengths):
        async def score(self, request: ScoreRequest) -> ScoreResult:
            await drawn.wait()
            return await super().score(request)

    scorer = Slow()
    decision = await taken(Once(("a", 0.0), ("bb", 0.0), ("ccc", 0.1), ("dddd", 0.1)), 4, scorer, **how)
    assert (texts(decision), decision.action.text) == (["a", "bb", "ccc", "dddd"], "dddd")
    assert [text for some in scorer.scored for text in some] == texts(decision)


@without_waiting
async def test_a_draw_that_fails_costs_no_candidate_that_has_come_where_the_caller_does_not_wait_for_all() -> None:
    class Failing(Uneven):
        async def _one(self, drawn: tuple[str, float], greedy: bool) -> Candidate:
            candidate = await super()._one(drawn, greedy)
            if drawn[0] == "last":
                raise UpstreamError("upstream uneven failed")
            return candidate

    policy = Failing(("a", 0.0), ("bb", 0.0), ("last", 0.1), ("dddd", NEVER))
    decision = await taken(policy, 4, max_wait_s=NEVER)
    assert (texts(decision), decision.draws_saved) == (["a", "bb", "last"], 0)
    assert decision.warnings == ("a draw failed: upstream uneven failed",)
    with pytest.raises(UpstreamError):
        await taken(policy, 4, until=UntilDecided(highest_q=9.0))
    with pytest.raises(UpstreamError):
        await taken(policy, 4, max_wait_s=NEVER, at_least=4)


@pytest.mark.parametrize("how", [{}, {"max_wait_s": NEVER}, {"max_wait_s": NEVER, "at_least": 2}])
@without_waiting
async def test_a_policys_own_timeout_is_not_the_callers(how: dict[str, Any]) -> None:
    class Late(Uneven):
        async def _one(self, drawn: tuple[str, float], greedy: bool) -> Candidate:
            if drawn[0] == "late":
                await asyncio.sleep(0.1)
                raise TimeoutError("its own")
            return await super()._one(drawn, greedy)

    with pytest.raises(TimeoutError, match=r"own$"):
        await taken(Late(("a", 0.0), ("late", 0.1)), 2, **how)


@without_waiting
async def test_what_came_of_a_policy_of_several_before_it_failed_is_not_drawn_again() -> None:
    class Failing(Uneven):
        async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
            await super().sample(history, n=n - 1, sampling=sampling)
            raise UpstreamError("upstream uneven failed")

    pool = PolicyPool([("failing", Failing(("a", 0.0), ("bb", 0.0)), 3), ("sound", ScriptedPolicy(["ccc"]), 1)])
    decision = await taken(pool, 4, batch=3, until=UntilDecided(highest_q=9.0))
    assert texts(decision) == ["a", "bb", "ccc", "ccc"]


@without_waiting
async def test_what_ranks_its_candidates_reads_them_together() -> None:
    scorer = Lengths()
    await taken(Uneven(("a", 0.0), ("bb", 0.05), ("ccc", 0.1)), 3, scorer, max_wait_s=NEVER, compares=True)
    assert scorer.scored == [["a", "bb", "ccc"]]


@without_waiting
async def test_the_greedy_reply_stands_first_whenever_it_comes() -> None:
    how: dict[str, Any] = {"sampling": Sampling(first_greedy=True), "greedy_weight": 1.0}
    late = await taken(Uneven(("greedy", 0.1), ("a", 0.0)), 2, **how, max_wait_s=NEVER)
    assert (texts(late), late.shares[0] > late.shares[1]) == (["greedy", "a"], True)
    without = await taken(Uneven(("greedy", NEVER), ("a", 0.0), ("b", 0.0)), 3, **how, max_wait_s=0.2)
    assert (texts(without), without.shares) == (["a", "b"], (0.5, 0.5))


@without_waiting
async def test_what_was_given_up_before_and_below_a_threshold_is_paid_for() -> None:
    below = Threshold(2.0, ("escalate",), num_candidates=2)
    policy, better = Uneven(("a", 0.0), ("b", 0.0), ("c", NEVER)), Uneven(("ddd", 0.0), ("eeee", NEVER))
    guidance = Guidance(num_candidates=3, sampling=Sampling(), batch=3, threshold=below, max_wait_s=0.3)
    decision = await guide(TASK, policy, Lengths(), guidance, escalation=better)
    assert (policy.given_up, better.given_up, len(decision.candidates)) == (["c"], [], 2)
    assert (decision.usage.prompt_tokens, decision.usage.completion_tokens) == (30, 2)

    policy = Uneven(("a", 0.0), ("b", 0.0))
    guidance = Guidance(num_candidates=2, sampling=Sampling(), batch=2, threshold=below, max_wait_s=0.5)
    decision = await guide(TASK, policy, Lengths(), guidance, escalation=better)
    assert (better.given_up, len(decision.candidates)) == (["eeee"], 2)
    assert (decision.usage.prompt_tokens, decision.usage.completion_tokens) == (40, 3)


@without_waiting
async def test_draws_that_can_change_nothing_end_before_those_below_a_threshold() -> None:
    below = Threshold(2.0, ("escalate",), num_candidates=1)
    policy, better = Uneven(("a" * 10, 0.0), ("b", NEVER)), Uneven(("ddd", 0.0))
    until = UntilDecided(highest_q=1.0)
    guidance = Guidance(num_candidates=2, sampling=Sampling(), batch=2, threshold=below, until=until)
    decision = await guide(TASK, policy, Lengths(), guidance, escalation=better)
    assert (policy.given_up, texts(decision)) == (["b"], ["a" * 10, "ddd"])
    assert (decision.usage.prompt_tokens, decision.usage.completion_tokens) == (30, 2)


@without_waiting
async def test_batches_go_on_until_the_time_is_up() -> None:
    policy = Uneven(("a", 0.1), ("bb", 0.1))
    decision = await taken(policy, 6, until=UntilDecided(highest_q=1.0), batch=2, max_wait_s=0.25)
    assert 2 <= len(decision.candidates) < 6


@without_waiting
async def test_policies_with_and_without_candidates_that_come_one_by_one_draw_together() -> None:
    pool = PolicyPool([("fast", ScriptedPolicy(["x"]), 1), ("uneven", Uneven(("aa", 0.0), ("bbb", NEVER)), 2)])
    decision = await taken(pool, 3, max_wait_s=0.3)
    assert sorted((one.policy, one.message.text) for one in decision.candidates) == [("fast", "x"), ("uneven", "aa")]


ASKED: Sequence[tuple[str, Any]] = (
    ("/v1/act", {"messages": CHAT, "num_candidates": 5}),
    ("/v1/chat/completions", {"model": "demo", "messages": CHAT}),
    ("/v1/messages", {"model": "demo", "messages": CHAT, "max_tokens": 99}),
    ("/v1/responses", {"model": "demo", "input": "Go."}),
    ("/v1beta/models/demo:generateContent", {"contents": [{"parts": [{"text": "Go."}]}]}),
    ("/api/chat", {"model": "demo", "messages": CHAT, "stream": False}),
)


@pytest.mark.parametrize(("path", "body"), ASKED)
@pytest.mark.parametrize("n", ["one_request", "parallel"])
def test_a_slow_candidate_holds_up_no_dialect(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, path: str, body: Any, n: str
) -> None:
    client = serve(_in_front_of(address[1], n))
    for wait_s in (0.2, 2, 20):  # until a busy machine has time for the four immediate answers
        upstream.delays_s, upstream.asked = (0.0, 0.0, SLOW_S), []
        if path == "/v1/act":
            told = client.post(path, json={**body, "max_wait_s": wait_s}).json()
        else:
            how = {"X-QGuide-Num-Candidates": "5", "X-QGuide-Max-Wait-S": str(wait_s)}
            told = client.post(path, json=body, headers=how).json()["qguide"]
        if told["draws_saved"] == 1:
            break
    assert (told["draws_saved"], len(upstream.asked)) == (1, 5)
    assert told["warnings"][-1] == f"4 of 5 candidates came within max_wait_s ({wait_s:g} s)"


def _in_front_of(url: str, n: str) -> Settings:
    served = Upstream.model_validate({"url": url, "model": "fake-1", "n": n})
    return FAKES.model_copy(update={"upstreams": {"demo": served}, "policy": "demo"})


@pytest.mark.parametrize("n", ["one_request", "parallel"])
def test_a_request_that_fails_costs_its_own_candidate_only(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, n: str
) -> None:
    upstream.fault, upstream.faults_left = "policy", 1
    client = serve(_in_front_of(address[1], n))
    told = client.post("/v1/act", json={"messages": CHAT, "num_candidates": 5, "max_wait_s": NEVER}).json()
    assert (len(told["candidates"]), told["draws_saved"]) == (4, 0)
    [warning] = told["warnings"]
    assert warning.startswith("a draw failed: upstream demo refused")


@pytest.mark.parametrize("wait_s", [0, -1, "soon", "inf"])
def test_a_time_that_is_none_is_refused(serve: Serve, wait_s: object) -> None:
    client = serve()
    answer = client.post("/v1/act", json={"messages": CHAT, "max_wait_s": wait_s})
    assert (answer.status_code, "max_wait_s" in answer.text) == (422, True)
