"""POST /v1/score."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from openai.types.chat import ChatCompletionMessage

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import Settings
from tests.support.tiny_models import policy_model, q_model
from tests.unit.server.conftest import FAKES, Serve, models_of

TASK = [{"role": "user", "content": "you see a desk. " * 8}]


def score(client: TestClient, candidates: list[Any], **body: Any) -> Any:
    return client.post("/v1/score", json={"messages": TASK, "candidates": candidates} | body)


def test_texts_and_messages_are_scored_alike(client: TestClient) -> None:
    said = "Action: go to desk 1"
    as_text = score(client, ["Action: look", said]).json()
    as_message = score(client, ["Action: look", {"role": "assistant", "content": said}]).json()
    assert as_text["scores"] == as_message["scores"]
    assert as_text["scores"] == [{"index": 0, "q_value": 0.5}, {"index": 1, "q_value": 0.75}]
    assert (as_text["chosen"], as_text["reason"]) == (1, "highest_q")


def test_q_is_what_the_reference_scorer_says(tiny_client: TestClient) -> None:
    candidates = ["Action: take mug", "Action: open shelf", "go"]
    answer = score(tiny_client, candidates).json()
    history = (Message("user", TASK[0]["content"]),)
    said = tuple(Message("assistant", text) for text in candidates)
    (expected,) = NaiveScorer(q_model()).score([ScoreRequest(history, said)])
    q_values = [row["q_value"] for row in answer["scores"]]
    assert q_values == pytest.approx(expected.q_values, abs=1e-5)
    assert answer["chosen"] == q_values.index(max(q_values))


def test_the_same_history_again_is_in_the_cache(tiny_client: TestClient) -> None:
    first, again = (score(tiny_client, ["go", "open"]).json()["usage"] for _ in range(2))
    assert first["cached_tokens"] == 0
    assert again["cached_tokens"] > 0
    assert again["scored_tokens"] + again["cached_tokens"] == first["scored_tokens"]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([], "candidates has 0 entries; send 1 to 8 (QGUIDE_MAX_CANDIDATES)"),
        ([str(n) for n in range(9)], "candidates has 9 entries; send 1 to 8 (QGUIDE_MAX_CANDIDATES)"),
        (["go", " \n"], "candidates[1] is empty; remove it"),
        (["go", "look", "go"], "candidates[0] and candidates[2] are equal; send each candidate once"),
        (
            [{"role": "user", "content": "go"}],
            "candidates[0] has the role 'user'; send candidates as assistant messages",
        ),
    ],
)
def test_candidates_that_cannot_be_scored_are_explained(
    client: TestClient, candidates: list[Any], message: str
) -> None:
    response = score(client, candidates)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_candidates"
    assert response.json()["error"]["message"] == message


def test_replies_may_be_sent_as_the_sdk_has_them(client: TestClient) -> None:
    said = [ChatCompletionMessage(role="assistant", content=text) for text in ("take mug", "open shelf")]
    refused = ChatCompletionMessage(role="assistant", refusal="I will not go.")
    thought = said[1].model_dump() | {"annotations": [], "reasoning_content": "It may be there."}
    asked = [*TASK, said[0].model_dump(), {"role": "user", "content": "You have it."}]
    found = client.post(
        "/v1/score", json={"messages": asked, "candidates": [said[0].model_dump(), thought, refused.model_dump()]}
    )
    plain = [*TASK, {"role": "assistant", "content": "take mug"}, asked[-1]]
    expected = client.post(
        "/v1/score", json={"messages": plain, "candidates": ["take mug", "open shelf", "I will not go."]}
    )
    assert found.status_code == 200
    assert found.json()["scores"] == expected.json()["scores"]


@pytest.mark.parametrize(
    ("candidate", "place"),
    [
        ({"function_call": {"name": "go", "arguments": "{}"}}, "candidates.0.function_call"),
        ({"contents": "go"}, "candidates.0.contents"),
        ({"content": [{"type": "text", "text": 3}]}, "candidates.0.content.0.text"),
    ],
)
def test_what_is_not_read_of_a_candidate_is_named(client: TestClient, candidate: dict[str, Any], place: str) -> None:
    response = score(client, [{"role": "assistant"} | candidate, "look"])
    assert response.status_code == 422
    assert f"body.{place}: " in response.json()["error"]["message"]


@pytest.fixture
def observing_client(serve: Serve) -> TestClient:
    """A server whose Q model reads after the observation."""

    def build(_: Settings) -> Models:
        thread = DeviceThread()
        scorer = SharedPrefixScorer(q_model(reads_observation=True))
        return models_of(LocalPolicy(policy_model(), thread=thread), scorer, thread)

    return serve(build=build)


def tried(action: str, observation: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": action, "observation": observation}


def test_q_after_an_observation_is_what_the_reference_scorer_says(observing_client: TestClient) -> None:
    candidates = [tried("go to desk", "you see mug"), tried("go to desk", "open shelf")]
    answer = score(observing_client, candidates).json()
    history = (Message("user", TASK[0]["content"]),)
    said = (Message("assistant", "go to desk"),) * 2
    answers = ((Message("user", "you see mug"),), (Message("user", "open shelf"),))
    request = ScoreRequest(history, said, observations=answers)
    (expected,) = NaiveScorer(q_model(reads_observation=True)).score([request])
    q_values = [row["q_value"] for row in answer["scores"]]
    assert q_values == pytest.approx(expected.q_values, abs=1e-5)
    assert answer["chosen"] == q_values.index(max(q_values))
    assert q_values[0] != q_values[1]


def test_tools_results_are_an_observation(observing_client: TestClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "open", "arguments": "{}"}}
    result = {"role": "tool", "content": "you see mug", "tool_call_id": "c1"}
    candidate = {"role": "assistant", "tool_calls": [call], "observation": [result]}
    other = candidate | {"observation": [result | {"content": "desk"}]}
    scores = score(observing_client, [candidate, other]).json()["scores"]
    assert scores[0]["q_value"] != scores[1]["q_value"]
    items = [{"messages": TASK, "candidates": [candidate, other]}]
    batch = observing_client.post("/v1/score/batch", json={"items": items}).json()
    assert [row["q_value"] for row in batch["items"][0]["scores"]] == pytest.approx(
        [row["q_value"] for row in scores], abs=1e-5
    )


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (["go", tried("look", "you see")], "candidates[0] has no observation, but others have one"),
        ([tried("go", []), tried("look", [])], "candidates[0].observation is empty; send a text"),
        (
            [tried("go", [{"role": "assistant", "content": "no"}])],
            "candidates[0].observation has the role 'assistant'; send a text, or messages",
        ),
        ([tried("go", "you see"), tried("go", "you see")], "are equal; send each candidate once"),
        (
            [tried("go", [{"role": "tool", "content": "a", "tool_call_id": "c"}])],
            "candidates[0] and its observation are malformed as messages: messages[1] is the",
        ),
        (["go", "look"], "give what trying each one answered as candidates[].observation"),
    ],
)
def test_observations_that_cannot_be_read_are_explained(
    observing_client: TestClient, candidates: list[Any], message: str
) -> None:
    response = score(observing_client, candidates)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_candidates")
    assert message in response.json()["error"]["message"]


def test_a_q_model_that_reads_at_the_action_refuses_observations(tiny_client: TestClient) -> None:
    response = score(tiny_client, [tried("go", "you see"), tried("take", "mug")])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_candidates")
    assert "leave out candidates[].observation" in response.json()["error"]["message"]


def test_an_action_to_draw_needs_a_q_model_that_reads_at_the_action(observing_client: TestClient) -> None:
    body = {"messages": TASK, "num_candidates": 4, "temperature": 5.0, "seed": 1, "max_tokens": 4}
    response = observing_client.post("/v1/act", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_candidates")
    assert "name a Q model that reads at the action" in response.json()["error"]["message"]
    fallen_back = observing_client.post("/v1/act", json=body | {"fallback": "first"}).json()
    assert fallen_back["guided"] is False
    assert "reads Q after the observation" in fallen_back["unguided_reason"]


def test_several_histories_are_scored_by_one_version(tiny_client: TestClient) -> None:
    items = [
        {"messages": TASK, "candidates": ["go", "open"]},
        {"messages": [{"role": "user", "content": "take mug"}], "candidates": ["go"]},
    ]
    answer = tiny_client.post("/v1/score/batch", json={"items": items}).json()
    for item, got in zip(items, answer["items"], strict=True):
        alone = tiny_client.post("/v1/score", json=item).json()
        q_values = [row["q_value"] for row in got["scores"]]
        assert q_values == pytest.approx([row["q_value"] for row in alone["scores"]], abs=1e-5)
        assert (got["chosen"], got["reason"]) == (alone["chosen"], alone["reason"])
    assert answer["q_model_version"] == "0"
    assert answer["timings_ms"]["total"] >= answer["timings_ms"]["score"] > 0


def test_one_bad_item_is_named_and_refuses_the_batch(client: TestClient) -> None:
    items = [{"messages": TASK, "candidates": ["go"]}, {"messages": TASK, "candidates": []}]
    response = client.post("/v1/score/batch", json={"items": items})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_candidates"
    assert response.json()["error"]["message"] == (
        "items[1]: candidates has 0 entries; send 1 to 8 (QGUIDE_MAX_CANDIDATES)"
    )


@pytest.mark.parametrize("number", [0, 3])
def test_a_batch_has_its_limit(serve: Serve, number: int) -> None:
    client = serve(FAKES.model_copy(update={"max_score_items": 2}))
    items = [{"messages": TASK, "candidates": ["go"]}] * number
    response = client.post("/v1/score/batch", json={"items": items})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert f"items has {number} entries; send 1 to 2" in response.json()["error"]["message"]


def test_tool_calls_are_candidates(client: TestClient) -> None:
    calls = [
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "go to", "arguments": arguments}}]}
        for arguments in ('{"place": "desk"}', '{"place": "shelf"}')
    ]
    answer = score(client, ["Action: look", *calls]).json()
    assert [row["q_value"] for row in answer["scores"]] == [0.5, 0.75, 0.75]
    again = score(client, [calls[0], calls[0]])
    assert "candidates[0] and candidates[1] are equal" in again.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/score/batch", {"items": [{"messages": TASK, "candidates": ["go"]}]}),
        ("/score", {"queries": "look", "documents": ["go"]}),
    ],
)
def test_several_histories_are_no_step_of_an_episode(
    client: TestClient, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    assert client.post(path, json=body | {"episode_id": "e"}).status_code == 200
    ended = client.post("/v1/episodes/e/outcome", json={"reward": 1.0})
    assert ended.json()["error"]["code"] == "unknown_episode"
    shape = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][shape["$ref"].rpartition("/")[2]]
    assert "no step is added" in schema["properties"]["episode_id"]["description"]
