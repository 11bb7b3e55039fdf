"""Both clients against the real server: every question, and every field of its answer."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest
from qguide_client import AsyncQGuide, QGuide, RefusedError, errors
from qguide_client.chat_types import ChatGuidance
from qguide_client.types import ScoreItem

TASK = [{"role": "user", "content": "You see a desk 1. Your task is to: look around."}]


def test_act_returns_the_choice_and_what_it_was_chosen_from(client: QGuide) -> None:
    decision = client.act(TASK, num_candidates=3, temperature=1.0, seed=0)
    q_values = [candidate.q_value or 0.0 for candidate in decision.candidates]
    assert len(q_values) == 3
    assert q_values[decision.chosen] == max(q_values) > min(q_values)
    assert decision.candidates[decision.chosen].message.content == decision.action
    assert (decision.policy, decision.q_model) == ("scripted", "demo")
    assert decision.usage.completion_tokens > 0
    assert decision.timings_ms.total > 0


def test_score_ranks_the_callers_own_candidates(client: QGuide) -> None:
    scores = client.score(TASK, ["Action: look", "Action: go to desk 1"])
    assert scores.chosen == 1
    assert scores.q_values[1] > scores.q_values[0]
    assert scores.reason == "highest_q"


def test_own_candidates_are_weighed_by_their_counts(client: QGuide) -> None:
    scores = client.score(TASK, ["Action: look", "Action: go to desk 1"], counts=[9, 1], tau=10.0)
    assert (scores.chosen, scores.reason, scores.tau) == (0, "highest_posterior", 10.0)
    item: ScoreItem = {"messages": TASK, "candidates": ["Action: look", "Action: put"], "counts": [9, 1]}
    [scored] = client.score_batch([item], tau=10.0).items
    assert scored.scores[0].prior == 9.5 / 11


def test_tool_calls_are_candidates_like_texts(client: QGuide) -> None:
    calls = [call_of("look"), call_of("inventory")]
    scores = client.score(TASK, [*calls, "Action: go to desk 1"])
    assert len(scores.q_values) == 3
    with pytest.raises(errors.InvalidCandidatesError):
        client.score(TASK, [call_of("look"), call_of("look")])


def call_of(name: str) -> dict[str, Any]:
    """An assistant's message that calls a tool."""
    call = {"id": uuid.uuid4().hex, "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_a_batch_is_scored_as_its_items_are(client: QGuide) -> None:
    other = [{"role": "user", "content": "Your task is to: sleep."}]
    items: list[ScoreItem] = [
        {"messages": TASK, "candidates": ["Action: look", "Action: go to desk 1"]},
        {"messages": other, "candidates": [call_of("sleep")]},
    ]
    batch = client.score_batch(items, q_model="demo")
    assert [item.q_values for item in batch.items] == [
        client.score(one["messages"], one["candidates"]).q_values for one in items
    ]
    assert batch.items[0].chosen == 1
    assert (batch.q_model, batch.q_model_version) == ("demo", "1")


async def test_the_async_client_scores_batches_too(async_client: AsyncQGuide) -> None:
    batch = await async_client.score_batch([{"messages": TASK, "candidates": ["a", "b"]}])
    assert len(batch.items[0].q_values) == 2


def test_models_and_readiness_are_told(client: QGuide) -> None:
    assert [card.id for card in client.models().data] == ["scripted"]
    assert [card.id for card in client.models().q_models] == ["demo@1"]
    assert client.models().aliases == {"demo": "demo@1", "default": "demo"}
    assert client.ready()


def test_rerank_sorts_the_documents(client: QGuide) -> None:
    documents = ["Action: look", "Action: go to desk 1", "Action: inventory"]
    ranking = client.rerank(TASK, documents, top_n=2, q_model="demo")
    assert [one.index for one in ranking.results] == [1, 0]
    assert ranking.results[0].q_value > ranking.results[1].q_value
    assert 0 < ranking.results[0].relevance_score < 1
    assert ranking.model == "demo@1"
    assert client.rerank(TASK[0]["content"], documents).results[:2] == ranking.results


def test_an_outcome_closes_an_episode_once(client: QGuide) -> None:
    episode_id = f"shop/{uuid.uuid4().hex}?"
    client.act(TASK, episode_id=episode_id)
    closed = client.outcome(episode_id, 0.5, terminated=False, action="wait", observation="It is late.")
    assert (closed.episode_id, closed.reward, closed.steps) == (episode_id, 0.5, 1)
    assert closed.recorded is (closed.reason is None)
    with pytest.raises(errors.EpisodeClosedError):
        client.act(TASK, episode_id=episode_id)
    with pytest.raises(errors.UnknownEpisodeError):
        client.outcome(uuid.uuid4().hex, 1.0)


async def test_the_async_client_reranks_and_reports_too(async_client: AsyncQGuide) -> None:
    ranking = await async_client.rerank(TASK, ["Action: look", "Action: go to desk 1"])
    assert [one.index for one in ranking.results] == [1, 0]
    async with async_client.episode() as episode:
        await episode.act("Your task is to: look.")
        assert (await episode.finish(1.0)).steps == 1


async def test_the_async_client_answers_the_same(client: QGuide, async_client: AsyncQGuide) -> None:
    acted, scored, models, ready = await asyncio.gather(
        async_client.act(TASK, num_candidates=3),
        async_client.score(TASK, ["Action: look", "Action: go to desk 1"]),
        async_client.models(),
        async_client.ready(),
    )
    assert acted.candidates == client.act(TASK, num_candidates=3).candidates
    assert scored.q_values == client.score(TASK, ["Action: look", "Action: go to desk 1"]).q_values
    assert models == client.models()
    assert ready


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (errors.InvalidCandidatesError, lambda client: client.act(TASK, num_candidates=9)),
        (errors.InvalidCandidatesError, lambda client: client.score(TASK, [])),
        (errors.MalformedHistoryError, lambda client: client.act([])),
        (errors.UnknownModelError, lambda client: client.act(TASK, q_model="nobody")),
        (errors.MalformedBodyError, lambda client: client.act(TASK, temperature=9)),
        (errors.HistoryTooLongError, lambda client: client.act(TASK + [{"role": "user", "content": "?"}] * 1024)),
        (errors.BodyTooLargeError, lambda client: client.act([{"role": "user", "content": "a" * 5 * 1024**2}])),
    ],
)
def test_each_refusal_has_its_class_the_servers_words_and_a_request_id(
    client: QGuide, kind: type[RefusedError], ask: Any
) -> None:
    with pytest.raises(kind) as caught:
        ask(client)
    assert type(caught.value) is kind
    assert len(caught.value.request_id) == 32
    assert caught.value.request_id in str(caught.value)
    assert caught.value.code


async def test_the_async_client_raises_the_same(async_client: AsyncQGuide) -> None:
    with pytest.raises(errors.UnknownModelError, match="nobody"):
        await async_client.act(TASK, q_model="nobody")


def test_a_chat_completions_guidance_is_read_whole(url: str) -> None:
    asked = {"num_candidates": 2, "episode_id": uuid.uuid4().hex, "return_candidates": True}
    raw = httpx.post(f"{url}/v1/chat/completions", json={"messages": TASK, "qguide": asked}).json()["qguide"]
    read = ChatGuidance.model_validate(raw)
    # Of long histories, of Q models with a threshold or a domain, and of steps of several policies.
    rare = {"window", "threshold", "domain_distance", "policies", "cost"}
    assert set(raw) == set(ChatGuidance.model_fields) - rare
    assert read.model_dump(mode="json", exclude_unset=True) == raw


def test_every_status_that_the_server_refuses_with_has_a_class() -> None:
    from qguide.server.http.error_table import HTTP_CODES, TABLE

    refusals = {(500, "internal_error"), (422, "malformed_body"), *TABLE.values()}
    refusals |= set(HTTP_CODES.items())
    assert [r for r in refusals if errors.class_of(*r) is RefusedError] == []
