"""How a method chooses, one step at a time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qnet.decision.selection import TieBreak
from qnet.errors import ScorerUnavailableError
from qnet.types import Candidate, Message, SampleRequest, Sampling, ScoreRequest, ScoreResult
from training.evaluation.methods import (
    Play,
    greedy,
    q_guided,
    random_of_m,
    sample,
)
from training.rollouts.episode import Agent, AgentStep

HISTORY = (Message("user", "a task"),)
PLAY = Play(candidates=4, sampling=Sampling(temperature=0.7))


def drawn(*texts: str, logprobs: Sequence[float] = ()) -> list[Candidate]:
    known = [*logprobs, *[None] * (len(texts) - len(logprobs))]
    return [
        Candidate(Message("assistant", text), 10, logprob)
        for text, logprob in zip(texts, known, strict=True)
    ]


def ask(agent: Agent, *answers: Any, step: int = 0) -> tuple[AgentStep, list[Any]]:
    """Answer the agent's requests in turn; returns its choice and the requests."""
    process, requests = agent(HISTORY, step), []
    try:
        requests.append(next(process))
        for answer in answers:
            requests.append(process.send(answer))
    except StopIteration as end:
        return end.value, requests
    raise AssertionError("the agent wants more answers")


def test_guidance_scores_different_replies_once_and_takes_the_best() -> None:
    choice, requests = ask(
        q_guided(PLAY, 0, "t"), drawn("a", "b", "a", "c"), ScoreResult((0.1, 0.9, 0.3), 33)
    )
    assert [m.content for m in requests[1].candidates] == ["a", "b", "c"]
    assert replace(choice, decision=None) == AgentStep(
        "b", completion_tokens=40, distinct_candidates=3, scored_tokens=33
    )


def test_guidance_scores_nothing_where_there_is_nothing_to_choose() -> None:
    choice, requests = ask(q_guided(PLAY, 0, "t"), drawn("a", "a", "a", "a"))
    assert not any(isinstance(request, ScoreRequest) for request in requests)
    assert replace(choice, decision=None) == AgentStep(
        "a", completion_tokens=40, distinct_candidates=1
    )


def first_request(agent: Agent, *, step: int = 0) -> SampleRequest:
    request = next(agent(HISTORY, step))
    assert isinstance(request, SampleRequest)
    return request


def test_guidance_and_random_choice_draw_the_same_candidates() -> None:
    guided = first_request(q_guided(PLAY, 3, "t"), step=5)
    assert guided == first_request(random_of_m(PLAY, 3, "t"), step=5)
    assert guided.n == 4


def test_draws_differ_between_seeds_tasks_and_steps() -> None:
    seeds = {
        first_request(sample(PLAY, seed, task), step=step).sampling.seed
        for seed in (0, 1)
        for task in ("t", "u")
        for step in (0, 1)
    }
    assert len(seeds) == 8


def test_greedy_draws_one_candidate_at_temperature_0() -> None:
    choice, (request,) = ask(greedy(PLAY), drawn("a"))
    assert (request.n, request.sampling.temperature) == (1, 0.0)
    assert choice.reply == "a"


def test_the_greedy_candidate_is_asked_for_only_where_it_was_wished() -> None:
    assert not first_request(q_guided(PLAY, 0, "t")).sampling.first_greedy
    wished = Play(greedy_candidate=True)
    assert first_request(q_guided(wished, 0, "t")).sampling.first_greedy


def test_a_random_choice_follows_how_often_a_reply_was_drawn() -> None:
    replies = [
        ask(random_of_m(PLAY, seed, "t"), drawn("a", "a", "a", "b"))[0].reply for seed in range(400)
    ]
    assert replies.count("a") == pytest.approx(300, abs=40)


@pytest.mark.parametrize(
    ("tie_break", "expected"), [("first", "a"), ("most-drawn", "b"), ("logprob", "c")]
)
def test_a_tie_is_broken_as_said(tie_break: TieBreak, expected: str) -> None:
    candidates = drawn("a", "b", "b", "c", logprobs=[-3.0, -2.0, -2.0, -1.0])
    choice, _ = ask(
        q_guided(Play(tie_break=tie_break), 0, "t"), candidates, ScoreResult((0.5, 0.5, 0.5), 9)
    )
    assert choice.reply == expected


@pytest.mark.parametrize("tie_break", ["first", "most-drawn", "logprob"])
def test_a_tie_break_never_outweighs_q(tie_break: TieBreak) -> None:
    candidates = drawn("a", "b", "b", logprobs=[-3.0, -1.0, -1.0])
    choice, _ = ask(
        q_guided(Play(tie_break=tie_break), 0, "t"), candidates, ScoreResult((0.51, 0.5), 9)
    )
    assert choice.reply == "a"


def test_a_q_that_is_no_number_is_refused() -> None:
    with pytest.raises(ScorerUnavailableError, match="nan"):
        ask(q_guided(PLAY, 0, "t"), drawn("a", "b"), ScoreResult((float("nan"), 0.5), 9))
