"""Both clients against the real server: every question, and every field of its answer."""

import asyncio
import uuid
from typing import Any

import pytest
from pydantic import BaseModel
from qguide_client import (
    AsyncQGuide,
    Decision,
    ModelList,
    Outcome,
    QGuide,
    Ranking,
    RefusedError,
    Scores,
    errors,
)
from qguide_client.chat_types import GuidanceOptions
from qguide_client.types import ActOptions, ModelOptions, OutcomeOptions

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


def test_models_and_readiness_are_told(client: QGuide) -> None:
    assert {card.id for card in client.models().data} == {"scripted", "demo@1"}
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
    closed = client.outcome(episode_id, 0.5, terminated=False, observation="It is late.")
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
        (
            errors.HistoryTooLongError,
            lambda client: client.act(TASK + [{"role": "user", "content": "?"}] * 1024),
        ),
        (
            errors.BodyTooLargeError,
            lambda client: client.act([{"role": "user", "content": "a" * 5 * 1024**2}]),
        ),
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


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    """What the server's own document says of its bodies."""
    from server.app import create_app
    from server.settings import Settings

    document = create_app(Settings()).openapi()
    found: dict[str, Any] = document["components"]["schemas"]
    return found


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Decision, "ActResponse"),
        (Scores, "ScoreResponse"),
        (ModelList, "ModelList"),
        (Ranking, "JinaRerankResponse"),
        (Outcome, "OutcomeResponse"),
    ],
)
def test_whatever_the_client_needs_the_server_promises(
    model: type[BaseModel], name: str, schemas: dict[str, Any]
) -> None:
    assert _missing(model.model_json_schema(), schemas, name) == []


def _missing(client_schema: dict[str, Any], schemas: dict[str, Any], name: str) -> list[str]:
    """Fields, nested ones too, that an answer must have for the client and need not for the
    server."""
    definitions = client_schema.get("$defs", {})
    missing: list[str] = []

    def compare(wanted: dict[str, Any], given: dict[str, Any], where: str) -> None:
        for field in wanted.get("required", ()):
            if field not in given.get("required", ()):
                missing.append(f"{where}.{field}")
                continue
            inner, outer = (_reference(schema["properties"][field]) for schema in (wanted, given))
            if inner and outer:
                compare(definitions[inner], schemas[outer], f"{where}.{field}")

    compare(client_schema, schemas[name], name)
    return missing


def _reference(field: dict[str, Any]) -> str | None:
    """Name of the object that a field holds, or holds several of."""
    target = field.get("$ref") or field.get("items", {}).get("$ref")
    return target.rpartition("/")[2] if target else None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ModelOptions, "ScoreRequestBody"),
        (ActOptions, "ActRequest"),
        (OutcomeOptions, "OutcomeRequest"),
        (GuidanceOptions, "GuidanceOptions"),
    ],
)
def test_every_option_is_one_of_the_servers(
    options: Any, name: str, schemas: dict[str, Any]
) -> None:
    assert set(options.__annotations__) <= set(schemas[name]["properties"])


def test_every_status_that_the_server_refuses_with_has_a_class() -> None:
    from server.errors import HTTP_CODES, TABLE

    refusals = {(500, "internal_error"), (422, "malformed_body"), *TABLE.values()}
    refusals |= set(HTTP_CODES.items())
    assert [r for r in refusals if errors.class_of(*r) is RefusedError] == []
