"""Rollout tasks are answered in batches, and the failure of one does not affect others."""

import threading
from collections.abc import Sequence

import pytest

from qguide.qnet.errors import ConfigError, EnvironmentFailureError, HistoryTooLongError, QGuideError
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling, ScoreRequest, ScoreResult
from qguide.training.environment import StepResult
from qguide.training.rollouts.driver import run_rollouts
from qguide.training.rollouts.episode import Episode, derived_seed, first_reply, play_episode, seeded
from qguide.training.rollouts.rollout import EnvironmentCall, RolloutTask, SampleRequests, TaskTimings
from qguide.training.trajectory import parse_action, text_reply
from tests.support.listed_models import ByLength

HISTORY_LIMIT = 40


class Counter:
    """An environment: the task is to say the number that follows, up to a goal."""

    def __init__(self, goal: int) -> None:
        self.goal, self.said, self.closed = goal, 0, False

    def reset(self) -> str:
        return "say 1"

    def step(self, action: str) -> StepResult:
        if action != str(self.said + 1):
            return StepResult("no", 0.0, terminated=False, valid=False)
        self.said += 1
        won = self.said == self.goal
        return StepResult(f"say {self.said + 1}", float(won), terminated=won)

    def close(self) -> None:
        self.closed = True


class Obedient:
    """A policy that says what the last message asks for; long chats are too long for it."""

    name = "obedient"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.batches.append(len(requests))
        if any(len(request.history) > HISTORY_LIMIT for request in requests):
            raise HistoryTooLongError("too long")
        return [
            [
                Candidate(Message("assistant", f"Action: {request.history[-1].content.split()[-1]}"), 3)
                for _ in range(request.n)
            ]
            for request in requests
        ]


GREEDY = first_reply(lambda step: Sampling(temperature=0))


def play_one(environment: Counter, max_steps: int) -> RolloutTask[Episode]:
    return play_episode(lambda: environment, GREEDY, max_steps=max_steps)


def play(
    environments: dict[str, Counter], *, parallel: int = 8, threads: int = 0, max_steps: int = 30
) -> tuple[dict[str, Episode], dict[str, QGuideError], Obedient, dict[str, TaskTimings]]:
    done: dict[str, Episode] = {}
    timings: dict[str, TaskTimings] = {}
    failed: dict[str, QGuideError] = {}

    def on_done(name: str, episode: Episode, spent: TaskTimings) -> None:
        done[name], timings[name] = episode, spent

    policy = Obedient()
    run_rollouts(
        ((name, play_one(e, max_steps)) for name, e in environments.items()),
        policy=policy,
        parallel=parallel,
        environment_threads=threads,
        on_done=on_done,
        on_failure=failed.__setitem__,
    )
    return done, failed, policy, timings


@pytest.mark.parametrize("threads", [0, 3])
def test_every_episode_is_played_to_its_end(threads: int) -> None:
    environments = {f"to {goal}": Counter(goal) for goal in range(1, 13)}
    done, failed, _, _ = play(environments, threads=threads)
    assert not failed
    assert {name: len(e.steps) for name, e in done.items()} == {f"to {goal}": goal for goal in range(1, 13)}
    assert all(e.reward == 1.0 and e.completion_tokens == 3 * len(e.steps) for e in done.values())
    assert all(e.closed for e in environments.values())


def test_processes_that_wait_for_the_policy_share_one_call() -> None:
    *_, policy, _ = play({str(i): Counter(4) for i in range(6)}, parallel=6)
    assert policy.batches == [6, 6, 6, 6]


def test_no_more_than_parallel_processes_are_alive() -> None:
    *_, policy, _ = play({str(i): Counter(4) for i in range(6)}, parallel=2)
    assert max(policy.batches) == 2


def test_a_step_limit_cuts_an_episode_off_without_a_reward() -> None:
    done, *_ = play({"far": Counter(10)}, max_steps=4)
    assert len(done["far"].steps) == 4
    assert (done["far"].terminated, done["far"].reward) == (False, 0.0)


def test_a_history_that_outgrows_the_policy_ends_only_its_own_episode() -> None:
    done, failed, *_ = play({"long": Counter(25), "short": Counter(20)})
    assert not failed
    assert (done["long"].too_long, done["long"].reward) == (True, 0.0)
    assert (done["short"].too_long, done["short"].reward) == (False, 1.0)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_broken_engine_fails_its_own_process_and_is_closed(threads: int) -> None:
    class Broken(Counter):
        def step(self, action: str) -> StepResult:
            raise EnvironmentFailureError("the engine is dead")

    broken = Broken(3)
    done, failed, *_ = play({"broken": broken, "whole": Counter(3)}, threads=threads)
    assert list(done) == ["whole"]
    assert "the engine is dead" in str(failed["broken"])
    assert broken.closed


@pytest.mark.parametrize("threads", [0, 2])
def test_a_bug_ends_the_run_and_closes_what_was_open(threads: int) -> None:
    class Buggy(Counter):
        def step(self, action: str) -> StepResult:
            raise ZeroDivisionError

    innocent = Counter(30)
    with pytest.raises(ZeroDivisionError):
        play({"innocent": innocent, "buggy": Buggy(3)}, threads=threads)
    assert innocent.closed


@pytest.mark.parametrize("threads", [0, 2])
def test_a_policy_that_answers_too_few_requests_ends_the_run(threads: int) -> None:
    class Forgetful(Obedient):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
            return super().sample_batch(requests)[1:]

    environments = [Counter(1), Counter(2)]
    with pytest.raises(ValueError, match="shorter"):
        run_rollouts(
            ((str(e.goal), play_one(e, 3)) for e in environments),
            policy=Forgetful(),
            parallel=2,
            environment_threads=threads,
            on_done=lambda *_: None,
            on_failure=lambda *_: None,
        )
    assert all(e.closed for e in environments)


def test_environment_calls_run_beside_each_other_in_threads() -> None:
    meeting = threading.Barrier(3, timeout=60)

    def process() -> RolloutTask[int]:
        place: int = yield EnvironmentCall(meeting.wait)
        return place

    places: list[int] = []
    run_rollouts(
        ((str(i), process()) for i in range(3)),
        policy=Obedient(),
        parallel=3,
        environment_threads=3,
        on_done=lambda name, place, spent: places.append(place),
        on_failure=lambda name, error: pytest.fail(str(error)),
    )
    assert sorted(places) == [0, 1, 2]


def test_scores_reach_the_process_that_asked() -> None:
    def process(text: str) -> RolloutTask[tuple[float, ...]]:
        result: ScoreResult = yield ScoreRequest((), (Message("assistant", text),))
        return result.q_values

    done: dict[str, tuple[float, ...]] = {}
    run_rollouts(
        ((text, process(text)) for text in ("a", "bbb")),
        policy=Obedient(),
        scorer=ByLength(),
        parallel=2,
        on_done=lambda name, q_values, spent: done.__setitem__(name, q_values),
        on_failure=lambda name, error: pytest.fail(str(error)),
    )
    assert done == {"a": (1.0,), "bbb": (3.0,)}


def test_scoring_without_a_scorer_says_what_is_missing() -> None:
    def process() -> RolloutTask[None]:
        yield ScoreRequest((), (Message("assistant", "a"),))

    with pytest.raises(ConfigError, match=r"Q model$"):
        run_rollouts(
            [("a", process())],
            policy=Obedient(),
            parallel=1,
            on_done=lambda name, value, spent: None,
            on_failure=lambda name, error: None,
        )


def test_a_prefix_is_replayed_without_asking_the_policy() -> None:
    episodes: list[Episode] = []
    environment = Counter(4)
    run_rollouts(
        [
            (
                "branch",
                play_episode(
                    lambda: environment, GREEDY, max_steps=9, prefix=(text_reply("Action: 1"), text_reply("Action: 2"))
                ),
            )
        ],
        policy=Obedient(),
        parallel=1,
        on_done=lambda name, episode, spent: episodes.append(episode),
        on_failure=lambda name, error: pytest.fail(str(error)),
    )
    assert [parse_action(step.action) for step in episodes[0].steps] == ["1", "2", "3", "4"]
    assert len(episodes[0].choices) == 2
    assert [m.role for m in episodes[0].messages[:3]] == ["user", "assistant", "user"]


def test_batched_time_is_shared_out_completely() -> None:
    *_, timings = play({str(i): Counter(i + 1) for i in range(5)})
    assert all(spent.policy_s > 0 for spent in timings.values())
    assert timings["4"].policy_s > timings["0"].policy_s


def test_derived_seeds_depend_on_every_part_and_on_nothing_else() -> None:
    sampling = seeded(Sampling(temperature=0.7), 0, "task")
    assert sampling(3) == Sampling(temperature=0.7, seed=derived_seed(0, "task", 3))
    assert len({derived_seed(s, t, i) for s in range(3) for t in "ab" for i in range(5)}) == 30


def test_several_draws_at_once_come_back_in_order_and_share_a_batch() -> None:
    policy = Obedient()
    asked = [SampleRequest((Message("user", word),), n) for word, n in (("a", 1), ("b", 2))]

    def process() -> RolloutTask[list[list[str]]]:
        several: list[list[Candidate]] = yield SampleRequests(tuple(asked))
        return [[candidate.message.content for candidate in drawn] for drawn in several]

    done: list[list[list[str]]] = []
    run_rollouts(
        [("both", process())],
        policy=policy,
        parallel=1,
        on_done=lambda name, said, spent: done.append(said),
        on_failure=lambda name, error: pytest.fail(str(error)),
    )
    assert done == [[["Action: a"], ["Action: b", "Action: b"]]]
    assert policy.batches == [2]


def test_one_draw_of_several_that_fails_fails_them_all() -> None:
    too_long = (Message("user", "a"),) * (HISTORY_LIMIT + 1)

    def process() -> RolloutTask[str]:
        try:
            yield SampleRequests((SampleRequest(too_long[:1], 1), SampleRequest(too_long, 1)))
        except HistoryTooLongError as error:
            return str(error)
        return "drawn"

    done: list[str] = []
    run_rollouts(
        [("both", process())],
        policy=Obedient(),
        parallel=1,
        on_done=lambda name, said, spent: done.append(said),
        on_failure=lambda name, error: pytest.fail(str(error)),
    )
    assert done == ["too long"]
