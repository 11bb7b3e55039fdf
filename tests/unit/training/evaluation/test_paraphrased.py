"""Draws under paraphrases of the task: which histories, how many, and what is scored after them."""

from dataclasses import replace
from typing import Any

import pytest

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.types import (
    Candidate,
    History,
    Message,
    SampleRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
    TaskMarker,
)
from qguide.training.evaluation.methods import Play, q_guided
from qguide.training.evaluation.paraphrased import under_paraphrase, with_paraphrases
from qguide.training.rollouts.episode import Agent, first_reply
from qguide.training.rollouts.rollout import SampleRequests

MARKERS = (TaskMarker("Task:"),)
HISTORY = (
    Message("user", "A room. Task: find the cup"),
    Message("assistant", "look"),
    Message("user", "A cup. Task: is only the first message's."),
)
PLAY = Play(candidates=5, sampling=Sampling(temperature=0.7), greedy_candidate=True)


def drawn(*texts: str) -> list[Candidate]:
    return [Candidate(Message("assistant", text), 2) for text in texts]


def first_of(agent: Agent) -> Any:
    return next(agent(HISTORY, 1))


def task_of(history: History) -> str:
    assert history[1:] == HISTORY[1:]
    return history[0].content.removeprefix("A room. Task: ")


def test_all_candidates_but_the_first_are_drawn_in_other_words() -> None:
    agent = with_paraphrases(q_guided(PLAY, 0, "t"), ("seek the cup", "get me a cup"), MARKERS)
    requests = first_of(agent)
    assert isinstance(requests, SampleRequests)
    assert [(task_of(r.history), r.n) for r in requests.requests] == [
        ("find the cup", 1),
        ("seek the cup", 2),
        ("get me a cup", 2),
    ]
    own, *others = requests.requests
    assert own.sampling.first_greedy
    assert not any(request.sampling.first_greedy for request in others)


def test_candidates_are_scored_after_the_true_history() -> None:
    process = with_paraphrases(q_guided(PLAY, 0, "t"), ("seek the cup",), MARKERS)(HISTORY, 1)
    next(process)
    request = process.send([drawn("a"), drawn("b", "a", "c", "b")])
    assert isinstance(request, ScoreRequest)
    assert request.history == HISTORY
    assert [message.content for message in request.candidates] == ["a", "b", "c"]
    with pytest.raises(StopIteration) as end:
        process.send(ScoreResult((0.1, 0.2, 0.9), 6))
    assert (end.value.value.reply, end.value.value.completion_tokens) == ("c", 10)


def test_other_words_that_are_too_long_give_way_to_the_tasks_own() -> None:
    agent = q_guided(PLAY, 0, "t")
    process = with_paraphrases(agent, ("find the cup " * 99,), MARKERS)(HISTORY, 1)
    next(process)
    assert process.throw(HistoryTooLongError("too long")) == first_of(agent)


def test_a_history_that_is_itself_too_long_ends_the_episode() -> None:
    agent = q_guided(PLAY, 0, "t")
    process = with_paraphrases(agent, ("find the cup",), MARKERS)(HISTORY, 1)
    requests = next(process)
    assert isinstance(requests, SampleRequests)
    assert [task_of(r.history) for r in requests.requests] == ["find the cup"]
    with pytest.raises(HistoryTooLongError):
        process.throw(HistoryTooLongError("too long"))


def test_a_whole_trajectory_is_drawn_under_one_paraphrase() -> None:
    plain = first_reply(lambda step: replace(PLAY.sampling, seed=step))
    [request] = first_of(under_paraphrase(plain, "seek the cup", MARKERS)).requests
    assert task_of(request.history) == "seek the cup"
    assert request.sampling == Sampling(temperature=0.7, seed=1)
    assert isinstance(request, SampleRequest)
