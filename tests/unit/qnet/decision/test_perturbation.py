"""Paraphrases of the task: where it stands, what is drawn, what happens when it fails."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.guide import NO_DEADLINE, Perturbation, guide
from qguide.qnet.decision.perturbation import MAX_TASK_CHARACTERS, Paraphraser, Paraphrases, find_task
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidCandidatesError,
    InvalidRequestError,
    MalformedHistoryError,
    ScorerUnavailableError,
)
from qguide.qnet.policies.scripted import ScriptedParaphraser
from qguide.qnet.types import Candidate, History, Message, Sampling, ScoreRequest, ScoreResult, TaskMarker
from qguide.qnet.work import taker
from qguide.server.redis.client import SharedRows

MARKERS = (TaskMarker("Your task is to:"), TaskMarker("Instruction: [SEP]", end="[SEP]"), TaskMarker("Goal"))
ALFWORLD = "You see a desk.\n\nYour task is to: put a mug on the desk."
HISTORY = (
    Message("system", "Your task is to: obey."),
    Message("user", ALFWORLD),
    Message("assistant", "Action: look"),
    Message("user", "Your task is to: put a mug on the desk."),
)


class Recording:
    """Answers with the first user message it was shown, and refuses some."""

    name = "recording"

    def __init__(self, *, refuses: str = "") -> None:
        self.refuses = refuses
        self.shown: list[tuple[History, int, Sampling]] = []

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """One reply, `n` times over."""
        said = next(m.content for m in history if m.role == "user")
        if self.refuses and self.refuses in said:
            raise HistoryTooLongError("it is too long")
        self.shown.append((history, n, sampling))
        return [Candidate(Message("assistant", f"{said} #{k}"), 3) for k in range(n)]


class NeverDone(Recording):
    """Hands over its candidates, and goes on drawing."""

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Until it is given up."""
        drawn = await super().sample(history, n=n, sampling=sampling)
        if take := taker():
            take(drawn)
        await asyncio.Event().wait()
        return []


class Scorer:
    """Remembers after which history it scored; the last is the best."""

    name = "scorer"

    def __init__(self) -> None:
        self.histories: list[History] = []

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Rising."""
        self.histories.append(request.history)
        return ScoreResult(tuple(map(float, range(len(request.candidates)))), 1)


class Failing:
    """A policy that has only bad news."""

    name = "failing"

    def __init__(self, news: Exception | Sequence[Candidate]) -> None:
        self.news = news

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Raise, or answer with what there is."""
        if isinstance(self.news, Exception):
            raise self.news
        return list(self.news)[:n]


def paraphraser_of(policy: Any, *, timeout_s: float = 5) -> Paraphraser:
    return Paraphraser(policy, SharedRows(None, "paraphrases", ttl_s=60), timeout_s=timeout_s)


async def perturbed(policy: Any, paraphraser: Paraphraser, *, m: int = 3, scorer: Any = None, **more: Any) -> Decision:
    perturbation = Perturbation(paraphraser, more.pop("task", None), MARKERS, more.pop("repeats_at", None))
    deadline = more.pop("deadline", NO_DEADLINE)
    sampling = more.pop("sampling", Sampling(seed=1, first_greedy=True))
    guidance = Guidance(m, sampling, **{"batch": 1} | more)
    return await guide(HISTORY, policy, scorer or Scorer(), guidance, perturbation=perturbation, deadline=deadline)


async def test_reworded_candidates_of_a_draw_that_is_given_up_are_counted() -> None:
    decision = await perturbed(NeverDone(), paraphraser_of(ScriptedParaphraser()), batch=3, max_wait_s=0.3)
    assert (len(decision.candidates), decision.perturbed) == (3, 2)


async def test_repeats_of_a_draw_that_is_given_up_are_told() -> None:
    how: dict[str, Any] = {"m": 4, "sampling": GREEDY, "repeats_at": 0.7, "batch": 4, "max_wait_s": 0.3}
    decision = await perturbed(NeverDone(), paraphraser_of(Failing(SAME)), **how)
    assert (len(decision.candidates), decision.perturbed) == (4, 3)
    assert "are equal; 2 drawn at 0.7" in decision.warnings[0]


async def test_the_time_that_a_caller_waits_begins_before_the_task_is_reworded() -> None:
    paraphraser = paraphraser_of(NeverDone())
    decision = await perturbed(Recording(), paraphraser, batch=1, max_wait_s=0.2)
    assert "no paraphrase came within 0.2 s" in decision.warnings[0]
    assert decision.warnings[1] == "1 of 3 candidates came within max_wait_s (0.2 s)"


@pytest.mark.parametrize(
    ("content", "task"),
    [
        (ALFWORLD, "put a mug on the desk."),
        ("WebShop [SEP] Instruction: [SEP] i need a red mug [SEP] Search", "i need a red mug"),
        ("Goal\ni need a red mug\n[Search]", "i need a red mug"),
        ("Example. Your task is to: a\n\nNow you. Your task is to: b", "b"),
        ("Goal: c. Your task is to: a", "a"),
        ("Book me a flight.\nTo Rome.", "Book me a flight.\nTo Rome."),
        ("Your task is to:   ", "Your task is to:   "),
    ],
)
def test_the_task_is_what_follows_a_marker_or_else_the_whole_message(content: str, task: str) -> None:
    history = (Message("system", "s"), Message("user", content), Message("user", "other"))
    place = find_task(history, markers=MARKERS)
    assert (place.message, place.text(history)) == (1, task)
    reworded = place.reworded(history, "X")
    assert reworded[1].content == content[: place.start] + "X" + content[place.end :]
    assert (reworded[0], reworded[2]) == (history[0], history[2])


def test_the_caller_may_say_which_part_is_the_task() -> None:
    place = find_task(HISTORY, task="a mug")
    assert place.text(HISTORY) == "a mug"


@pytest.mark.parametrize("task", ["a cup", ""])
def test_a_task_that_is_not_there_is_refused(task: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^task .*first"):
        find_task(HISTORY, task=task)


def test_a_history_without_a_user_has_no_task() -> None:
    with pytest.raises(MalformedHistoryError, match=r"user .*task$"):
        find_task((Message("system", "s"),))


async def test_candidates_after_the_first_are_drawn_under_paraphrases() -> None:
    policy, scorer = Recording(), Scorer()
    guided = await perturbed(policy, paraphraser_of(ScriptedParaphraser()), scorer=scorer)
    assert [history[1].content.partition(": ")[2] for history, _, _ in policy.shown] == [
        "put a mug on the desk.",
        "In other words: put a mug on the desk.",
        "What is to be done: put a mug on the desk.",
    ]
    assert all(h[0] == HISTORY[0] and h[2:] == HISTORY[2:] for h, _, _ in policy.shown)
    assert [s.first_greedy for _, _, s in policy.shown] == [True, False, False]
    assert scorer.histories == [HISTORY]
    assert (guided.perturbed, guided.warnings) == (2, ())
    assert guided.usage.paraphrasing.completion_tokens > 0
    said = [c.message.content for c in guided.candidates]
    assert "In other words" in said[1]
    assert "What is to be done" in said[2]


async def test_a_task_is_paraphrased_once() -> None:
    paraphraser = paraphraser_of(ScriptedParaphraser())
    first, again = [await perturbed(Recording(), paraphraser) for _ in range(2)]
    assert first.usage.paraphrasing.completion_tokens > 0
    assert (again.usage.paraphrasing.completion_tokens, again.perturbed) == (0, 2)
    more = await perturbed(Recording(), paraphraser, m=5)
    assert (more.perturbed, more.usage.paraphrasing.completion_tokens) == (
        4,
        first.usage.paraphrasing.completion_tokens,
    )


async def test_adaptive_batches_go_on_through_the_paraphrases() -> None:
    policy = Recording()
    guided = await perturbed(policy, paraphraser_of(ScriptedParaphraser()), rise_over=0.0)
    assert [n for _, n, _ in policy.shown] == [1, 1, 1]
    assert len({history[1].content for history, _, _ in policy.shown}) == 3
    assert (guided.perturbed, guided.draws_saved) == (2, 0)


@pytest.mark.parametrize(
    ("news", "warning"),
    [
        (ScorerUnavailableError("gone"), "the task was not paraphrased: failing failed: gone"),
        (RuntimeError("no memory"), "the task was not paraphrased: failing failed"),
        (
            [Candidate(Message("assistant", "cut"), 1, finished=False)] * 2,
            "2 of 2 paraphrases failed and are the task itself",
        ),
        (
            [Candidate(Message("assistant", " "), 1), Candidate(Message("assistant", "ok"), 1)],
            "1 of 2 paraphrases failed and are the task itself",
        ),
    ],
)
async def test_a_failed_paraphrase_is_the_task_itself_and_said(news: Any, warning: str) -> None:
    policy = Recording()
    guided = await perturbed(policy, paraphraser_of(Failing(news)))
    usable = 1 if "1 of 2" in warning else 0
    assert (guided.perturbed, guided.warnings) == (usable, (warning,))
    assert sum(n for _, n, _ in policy.shown) == 3
    assert len(guided.candidates) == 3


async def test_a_failure_is_tried_again_the_next_time() -> None:
    failing = Failing(ScorerUnavailableError("gone"))
    paraphraser = paraphraser_of(failing)
    assert (await perturbed(Recording(), paraphraser)).perturbed == 0
    failing.news = [Candidate(Message("assistant", "mugs belong on desks"), 4)] * 2
    assert (await perturbed(Recording(), paraphraser)).perturbed == 2


async def test_of_several_only_those_that_failed_are_tried_again() -> None:
    cut = Candidate(Message("assistant", "cut"), 1, finished=False)
    failing = Failing([Candidate(Message("assistant", "mugs belong on desks"), 4), cut])
    paraphraser = paraphraser_of(failing)
    first = await paraphraser.paraphrase("put a mug", n=2)
    assert first.texts == ("mugs belong on desks", "put a mug")
    failing.news = [Candidate(Message("assistant", "a mug on a desk"), 4)]
    again = await paraphraser.paraphrase("put a mug", n=2)
    assert (again.texts, again.warnings) == (("mugs belong on desks", "a mug on a desk"), ())
    failing.news = ScorerUnavailableError("not asked again")
    assert await paraphraser.paraphrase("put a mug", n=2) == Paraphrases(again.texts)


async def test_another_model_of_the_same_name_is_asked_anew() -> None:
    cache = SharedRows(None, "paraphrases", ttl_s=60)
    for content, answer in (("model-1", "one"), ("model-2", "two"), ("model-1", "one")):
        policy = Failing([Candidate(Message("assistant", answer), 1)])
        drawn = await Paraphraser(policy, cache, content=content).paraphrase("put a mug", n=1)
        assert drawn.texts == (answer,)


async def test_a_paraphraser_that_hangs_is_done_without() -> None:
    class Hanging(Failing):
        async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
            await asyncio.sleep(60)
            return []

    guided = await perturbed(Recording(), paraphraser_of(Hanging([]), timeout_s=0.01))
    assert guided.perturbed == 0
    assert "no paraphrase came within 0.01 s" in guided.warnings[0]


async def test_a_paraphrase_that_the_policy_refuses_is_not_used() -> None:
    policy = Recording(refuses="In other words")
    guided = await perturbed(policy, paraphraser_of(ScriptedParaphraser()))
    assert guided.perturbed == 1
    assert guided.warnings == ("a paraphrase was not used: it is too long",)
    assert len(guided.candidates) == 3


async def test_a_very_long_task_is_left_as_it_is() -> None:
    task = "x" * (MAX_TASK_CHARACTERS + 1)
    paraphrases = await paraphraser_of(ScriptedParaphraser()).paraphrase(task, n=2)
    assert paraphrases.texts == (task, task)
    assert "give the task alone as `task`" in paraphrases.warnings[0]


async def test_one_candidate_needs_no_paraphrase() -> None:
    failing = paraphraser_of(Failing(ScorerUnavailableError("gone")))
    guided = await perturbed(Recording(), failing, m=1)
    assert (guided.perturbed, guided.warnings) == (0, ())


@pytest.mark.parametrize("rise_over", [None, 0.0])
async def test_no_candidates_are_refused(rise_over: float | None) -> None:
    with pytest.raises(InvalidCandidatesError, match="num_candidates is 0"):
        await perturbed(Recording(), paraphraser_of(ScriptedParaphraser()), m=0, rise_over=rise_over)


TASK = "put a mug on the desk."
GREEDY = Sampling(temperature=0.0)
SAME = [Candidate(Message("assistant", "mugs belong on desks"), 4)] * 3
GONE = ScorerUnavailableError("gone")


def draws_of(policy: Recording) -> list[tuple[str, int, float | None, bool]]:
    """Task, number, temperature and greediness of each draw."""
    return [
        (history[1].content.partition("Your task is to: ")[2], n, s.temperature, s.first_greedy)
        for history, n, s in policy.shown
    ]


@pytest.mark.parametrize(
    ("news", "draws"),
    [(GONE, [(TASK, 4, 0.7, True)]), (SAME, [(TASK, 1, 0.0, False), ("mugs belong on desks", 3, 0.7, True)])],
)
async def test_at_temperature_0_repeats_of_a_text_are_drawn_warmer(news: Any, draws: Any) -> None:
    policy = Recording()
    guided = await perturbed(policy, paraphraser_of(Failing(news)), m=4, sampling=GREEDY, repeats_at=0.7)
    assert draws_of(policy) == draws
    repeats = 3 if news is GONE else 2
    assert f"are equal; {repeats} drawn at 0.7" in guided.warnings[-1]


async def test_at_temperature_0_later_batches_know_which_texts_were_drawn() -> None:
    policy = Recording()
    options: Any = {"sampling": GREEDY, "repeats_at": 0.7, "rise_over": 9.0}
    await perturbed(policy, paraphraser_of(Failing(SAME)), **options)
    assert draws_of(policy) == [
        (TASK, 1, 0.0, False),
        ("mugs belong on desks", 1, 0.0, False),
        ("mugs belong on desks", 1, 0.7, False),
    ]


async def test_at_temperature_0_a_refused_paraphrase_repeats_the_task() -> None:
    policy = Recording(refuses="mugs belong")
    options: Any = {"sampling": GREEDY, "repeats_at": 0.7, "m": 2}
    guided = await perturbed(policy, paraphraser_of(Failing(SAME)), **options)
    assert draws_of(policy) == [(TASK, 1, 0.0, False), (TASK, 1, 0.7, False)]
    assert "1 drawn at 0.7" in guided.warnings[-1]


@pytest.mark.parametrize(("at_least", "drawn"), [(1, 2), (3, 3)])
async def test_at_temperature_0_repeats_may_be_left_out(at_least: int, drawn: int) -> None:
    policy = Recording()
    options: Any = {"sampling": GREEDY, "repeats_at": 0.0, "at_least": at_least}
    guided = await perturbed(policy, paraphraser_of(Failing(SAME)), m=4, **options)
    assert len(guided.candidates) == drawn
    assert draws_of(policy)[0] == (TASK, 1, 0.0, False)


async def test_paraphrases_that_differ_are_all_drawn_at_temperature_0() -> None:
    policy = Recording()
    options: Any = {"sampling": GREEDY, "repeats_at": 0.7}
    guided = await perturbed(policy, paraphraser_of(ScriptedParaphraser()), **options)
    assert [(n, temperature) for _, n, temperature, _ in draws_of(policy)] == [(1, 0.0)] * 3
    assert guided.warnings == ()
