"""Tasks with a hosted policy: none waits for another, and what fails ends one task or all."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError, QGuideError, UpstreamLostError, UpstreamRefusedError
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling, ScoreRequest, ScoreResult
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.rollouts.driver import run_rollouts
from qguide.training.rollouts.hosted import HostedPolicy, build_hosted_policy
from qguide.training.rollouts.policies import JobPolicy, PolicyWithRollouts
from qguide.training.rollouts.rollout import EnvironmentCall, RolloutTask, SampleRequests, TaskTimings, TimingsRequest
from qguide.training.rollouts.usage import UpstreamUsage
from tests.support.corridor_upstream import MODEL, SameReplies, hosted, serving_corridors


def policy(url: str, **changes: object) -> HostedPolicy:
    return build_hosted_policy("upstream:demo", hosted(url, **changes))


def ask(text: str, *, role: Any = "act", n: int = 1) -> SampleRequest:
    return SampleRequest((Message("user", text),), n, Sampling(seed=0), role)


class Played:
    """Everything that the driver reports."""

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}
        self.failed: dict[str, QGuideError] = {}
        self.usage: dict[str, UpstreamUsage] = {}

    def run(
        self,
        tasks: dict[str, RolloutTask[Any]],
        policy: JobPolicy,
        scorer: Any = None,
        *,
        parallel: int = 8,
        threads: int = 0,
    ) -> "Played":
        def on_done(name: str, result: Any, spent: TaskTimings) -> None:
            self.done[name] = result

        run_rollouts(
            tasks.items(),
            policy=policy,
            scorer=scorer,
            parallel=parallel,
            environment_threads=threads,
            on_done=on_done,
            on_failure=self.failed.__setitem__,
            on_usage=self.usage.__setitem__,
        )
        return self


class Counted:
    """A scorer: Q is the number of requests in its batch."""

    name = "counted"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        self.batches.append(len(requests))
        return [ScoreResult((0.0,) * len(r.candidates), 1) for r in requests]


def turns(count: int) -> RolloutTask[int]:
    """Draw so many times, one after the other."""
    for turn in range(count):
        drawn: list[Candidate] = yield ask(f"turn {turn}")
        assert len(drawn) == 1
    return count


def test_a_long_task_does_not_wait_for_a_slow_answer_of_another() -> None:
    fake = FakeUpstream(fault="hang", faults_left=1)
    with serving_corridors(fake) as url:
        tasks = {"one": turns(3), "other": turns(3)}
        played = Played().run(tasks, policy(url, timeout_s=1.0))
    hung = fake.sessions[0]  # of whichever task asked first; it is asked again
    assert sorted(played.done) == ["one", "other"]
    assert list(played.done)[-1] == hung


def test_a_refused_request_fails_its_task_alone() -> None:
    def refused() -> RolloutTask[None]:
        yield SampleRequest((), 1, Sampling())

    with serving_corridors(FakeUpstream()) as url:
        played = Played().run({"bad": refused(), "good": turns(2)}, policy(url))
    assert isinstance(played.failed["bad"], UpstreamRefusedError)
    assert played.done == {"good": 2}


@pytest.mark.parametrize("threads", [0, 2])
def test_a_bug_ends_the_run_and_closes_every_task(threads: int) -> None:
    closed: list[str] = []

    def task(name: str, function: Any) -> RolloutTask[None]:
        try:
            yield ask("first")
            yield EnvironmentCall(function)
            yield from turns(1000)
        finally:
            closed.append(name)

    with serving_corridors(FakeUpstream()) as url:
        tasks = {"bug": task("bug", lambda: [][0]), "other": task("other", lambda: 1)}
        with pytest.raises(IndexError):
            Played().run(tasks, policy(url), threads=threads)
    assert sorted(closed) == ["bug", "other"]


def test_an_interrupted_run_waits_for_no_hanging_draw_and_leaves_no_thread() -> None:
    closed: list[str] = []

    def waits() -> RolloutTask[None]:
        try:
            yield from turns(1)
        finally:
            closed.append("waits")

    def interrupt() -> None:
        raise KeyboardInterrupt

    def interrupted() -> RolloutTask[None]:
        yield EnvironmentCall(interrupt)

    with serving_corridors(FakeUpstream(fault="hang")) as url:
        before, began = threading.active_count(), time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            Played().run({"waits": waits(), "interrupted": interrupted()}, policy(url), threads=1)
        assert time.monotonic() - began < 10
        assert (closed, threading.active_count()) == (["waits"], before)


def test_a_lost_upstream_ends_the_run_and_its_usage_is_told() -> None:
    with serving_corridors(FakeUpstream(fault="503", faults_after=3)) as url:
        played = Played()
        with pytest.raises(UpstreamLostError, match=r"demo .*503"):
            played.run({"only": turns(10)}, policy(url, patience_s=0.3))
    assert (played.done, played.failed) == ({}, {})
    assert played.usage["only"].requests == 3


def test_one_bad_answer_among_good_ones_ends_its_task_alone() -> None:
    fake = FakeUpstream(fault="garbage", faults_after=4, faults_left=1)
    with serving_corridors(fake) as url:
        played = Played().run({f"task {n}": turns(4) for n in range(4)}, policy(url))
    assert len(played.done) == 3
    [error] = played.failed.values()
    assert "did not answer with a chat completion" in str(error)


def test_scores_are_read_in_batches_of_what_waits() -> None:
    def scoring() -> RolloutTask[None]:
        history = (Message("user", "look"),)
        for _ in range(3):
            yield ScoreRequest(history, (Message("assistant", "a"),))

    scorer = Counted()
    with serving_corridors(FakeUpstream()) as url:
        Played().run({str(n): scoring() for n in range(6)}, policy(url), scorer)
    assert scorer.batches == [6, 6, 6]


def test_a_score_without_a_q_model_is_an_error() -> None:
    def scoring() -> RolloutTask[None]:
        yield ScoreRequest((Message("user", "look"),), (Message("assistant", "a"),))

    refused = pytest.raises(ConfigError, match=r"Q model$")
    with serving_corridors(FakeUpstream()) as url, refused:
        Played().run({"only": scoring()}, policy(url))


def test_rollouts_may_be_a_policy_of_this_process() -> None:
    def task() -> RolloutTask[list[str]]:
        branch: list[Candidate] = yield ask("a", role="branch", n=2)
        rollout: list[Candidate] = yield ask("a", role="rollout")
        return [candidate.message.content for candidate in (*branch, *rollout)]

    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        both = PolicyWithRollouts(policy(url), SameReplies())
        played = Played().run({"only": task()}, both)
    assert both.name == MODEL
    assert len(fake.asked) == played.usage["only"].requests == 1
    assert len(played.done["only"]) == 3
    assert played.done["only"][0] == played.done["only"][2]


def test_instructions_open_every_state_that_is_sent() -> None:
    def task() -> RolloutTask[None]:
        yield ask("a")
        yield SampleRequest((Message("system", "Be kind."), Message("user", "b")), 1, Sampling())

    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        Played().run({"only": task()}, policy(url, instructions="Act."))
    sent = [[message["content"] for message in body["messages"]] for body in fake.asked]
    assert sent == [["Act.", "a"], ["Act.\n\nBe kind.", "b"]]


def test_several_draws_are_sent_at_the_same_time() -> None:
    def task() -> RolloutTask[list[int]]:
        drawn: list[list[Candidate]] = yield SampleRequests((ask("a", n=2), ask("a"), ask("a")))
        spent: TaskTimings = yield TimingsRequest()
        assert spent.policy_s > 0
        return [len(each) for each in drawn]

    fake = FakeUpstream(together=3)
    with serving_corridors(fake) as url:
        played = Played().run({"only": task()}, policy(url))
    assert played.done == {"only": [2, 1, 1]}
    assert fake.sessions == ["only"] * 3
