"""Choices of each method, one step at a time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError, ScorerUnavailableError
from qguide.qnet.models.manifest import PriorSection
from qguide.qnet.types import Candidate, Message, Role, SampleRequest, Sampling, ScoreRequest, ScoreResult
from qguide.training.evaluation.methods import (
    Play,
    adaptive,
    greedy,
    likeliest,
    no_repeat,
    q_guided,
    q_posterior,
    random_distinct,
    random_of_m,
    sample,
    self_consistency,
)
from qguide.training.rollouts.episode import Agent, AgentStep
from qguide.training.trajectory import Drawn

HISTORY = (Message("user", "a task"),)
PLAY = Play(candidates=4, sampling=Sampling(temperature=0.7))


def drawn(*texts: str, logprobs: Sequence[float] = ()) -> list[Candidate]:
    known = [*logprobs, *[None] * (len(texts) - len(logprobs))]
    return [Candidate(Message("assistant", text), 10, logprob) for text, logprob in zip(texts, known, strict=True)]


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
    choice, requests = ask(q_guided(PLAY, 0, "t"), drawn("a", "b", "a", "c"), ScoreResult((0.1, 0.9, 0.3), 33))
    assert [m.content for m in requests[1].candidates] == ["a", "b", "c"]
    a, b, c = (Message("assistant", text) for text in "abc")
    assert replace(choice, decision=None) == AgentStep(
        b, completion_tokens=40, distinct_candidates=3, scored_tokens=33, drawn=(Drawn(a, 2), Drawn(b), Drawn(c))
    )


def test_adaptive_draws_until_q_is_above_that_of_the_step_before() -> None:
    agent = adaptive(PLAY, 0, "t")
    choice, requests = ask(agent, drawn("a", "b", "a", "a"), ScoreResult((0.4, 0.2), 9))
    assert requests[0] == first_request(q_guided(PLAY, 0, "t"))
    assert choice.reply == "a"

    answers: list[Any] = [drawn("c", "d"), ScoreResult((0.4, 0.1), 9)]
    answers += [drawn("e", "c"), ScoreResult((0.3,), 5)]
    choice, requests = ask(agent, *answers, step=1)
    assert [r.n for r in requests[::2]] == [2, 2]  # 0.4 again is no rise, so all 4 are drawn
    assert (choice.reply, choice.completion_tokens, choice.scored_tokens) == ("c", 40, 14)

    choice, requests = ask(agent, drawn("f", "g"), ScoreResult((0.1, 0.5), 9), step=2)
    assert (choice.reply, len(requests)) == ("g", 2)
    choice, requests = ask(agent, drawn("h", "h"), ScoreResult((0.6,), 9), step=3)
    assert (choice.reply, len(requests)) == ("h", 2)  # scored, for the next step


def test_each_guided_trajectory_has_draws_of_its_own() -> None:
    first, *others = (first_request(q_guided(PLAY, 0, "t", trajectory=n)) for n in range(3))
    assert first == first_request(q_guided(PLAY, 0, "t"))
    assert len({r.sampling.seed for r in (first, *others)}) == 3


def test_guidance_scores_nothing_where_there_is_nothing_to_choose() -> None:
    choice, requests = ask(q_guided(PLAY, 0, "t"), drawn("a", "a", "a", "a"))
    assert not any(isinstance(request, ScoreRequest) for request in requests)
    a = Message("assistant", "a")
    assert replace(choice, decision=None) == AgentStep(
        a, completion_tokens=40, distinct_candidates=1, drawn=(Drawn(a, 4),)
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
    replies = [ask(random_of_m(PLAY, seed, "t"), drawn("a", "a", "a", "b"))[0].reply for seed in range(400)]
    assert replies.count("a") == pytest.approx(300, abs=40)


def test_a_random_distinct_choice_does_not() -> None:
    candidates = drawn("a", "a", "a", "b")
    replies = [ask(random_distinct(PLAY, seed, "t"), candidates)[0].reply for seed in range(400)]
    assert replies.count("a") == pytest.approx(200, abs=40)


def test_every_choice_among_candidates_is_among_the_same_ones() -> None:
    guided = first_request(q_guided(PLAY, 3, "t"), step=5)
    for method in (random_distinct, self_consistency, likeliest, adaptive):
        assert first_request(method(PLAY, 3, "t"), step=5) == guided
    assert first_request(no_repeat(PLAY, 3, "t", void_observation=""), step=5) == guided


def test_self_consistency_counts_actions_and_not_thoughts() -> None:
    candidates = drawn("A\nAction: x", "B\nAction: y", "C\nAction: y", "D\nAction: x")
    choice, _ = ask(self_consistency(PLAY, 0, "t"), candidates)
    assert choice.reply == "A\nAction: x"  # the first of two that are as frequent
    candidates = drawn("A\nAction: x", "B\nAction: y", "C\nAction: y")
    assert ask(self_consistency(PLAY, 0, "t"), candidates)[0].reply == "B\nAction: y"


def test_likeliest_needs_a_policy_that_reports_log_probabilities() -> None:
    candidates = drawn("a", "b", "c", logprobs=[-3.0, -1.0, -2.0])
    choice, _ = ask(likeliest(PLAY, 0, "t"), candidates)
    assert (choice.reply, choice.completion_tokens) == ("b", 30)
    with pytest.raises(ConfigError, match="no log-probabilities"):
        ask(likeliest(PLAY, 0, "t"), drawn("a", "b"))


def replies_after(*turns: str, candidates: Sequence[str]) -> set[str]:
    """The replies that `no-repeat` may choose after these replies and observations."""
    roles: tuple[Role, Role] = ("user", "assistant")
    history = tuple(Message(roles[i % 2], text) for i, text in enumerate(("a task", *turns)))
    said = set()
    for seed in range(40):
        process = no_repeat(PLAY, seed, "t", void_observation="Nothing.")(history, len(turns) // 2)
        next(process)
        with pytest.raises(StopIteration) as end:
            process.send(drawn(*candidates))
        said.add(end.value.value.reply)
    return said


def test_what_has_failed_is_not_said_again_until_something_happens() -> None:
    x, y = "Action: x", "Action: y"
    assert replies_after(candidates=(x, y)) == {x, y}
    assert replies_after(x, "Nothing.", candidates=(x, y)) == {y}
    assert replies_after(x, "Nothing.", y, "Nothing.", candidates=(x, y, "Action: z")) == {"Action: z"}
    assert replies_after(x, "Nothing.", y, "A door opens.", candidates=(x, y)) == {x, y}
    assert replies_after(x, "Nothing.", candidates=(x, f"Hm. {x}")) == {x, f"Hm. {x}"}


def test_the_first_of_a_tie_is_taken() -> None:
    scores = ScoreResult((0.5, 0.5, 0.5, 0.4), 9)
    choice, _ = ask(q_guided(PLAY, 0, "t"), drawn("a", "b", "b", "c", "d"), scores)
    assert choice.reply == "a"


def test_a_q_that_is_no_number_is_refused() -> None:
    with pytest.raises(ScorerUnavailableError, match="nan"):
        ask(q_guided(PLAY, 0, "t"), drawn("a", "b"), ScoreResult((float("nan"), 0.5), 9))


def test_the_posterior_weighs_votes_among_the_candidates_of_q_guided() -> None:
    candidates, scores = drawn("a", "b", "a", "a"), ScoreResult((0.5, 0.52), 9)
    guided, asked = ask(q_guided(PLAY, 0, "t"), candidates, scores)
    weighed, same = ask(q_posterior(replace(PLAY, tau=0.1), 0, "t"), candidates, scores)
    assert (guided.reply, weighed.reply) == ("b", "a")
    assert asked[0] == same[0]
    assert ask(q_posterior(replace(PLAY, tau=0.0), 0, "t"), candidates, scores)[0].reply == "b"
    assert ask(q_guided(PLAY, 0, "t", prior=PriorSection(tau=0.1)), candidates, scores)[0] == weighed
