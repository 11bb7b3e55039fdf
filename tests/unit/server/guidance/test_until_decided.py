"""Steps that draw until no further draw can change the choice."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.settings.settings import SCRIPTED
from tests.unit.server.conftest import FAKES, Serve

TASK = [{"role": "user", "content": "Your task is to: take the mug."}]


@pytest.fixture
def client(serve: Serve) -> TestClient:
    """A server that draws one candidate at a time, and its policy says the same each time."""
    models = {"demo": SCRIPTED, "votes": "votes", "order": "likelihood"}
    return serve(FAKES.model_copy(update={"q_models": models, "adaptive_batch": 1}))


def act(client: TestClient, **options: Any) -> Any:
    body = {"messages": TASK, "num_candidates": 7, "until_decided": True, **options}
    return client.post("/v1/act", json=body)


@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({"q_model": "votes"}, 3),  # four of seven are a majority
        ({"tau": 1.0}, 2),  # Q is .5, and a rival's may be 1
        ({"selection": "argmax"}, 0),  # a better one may always come
        ({"q_model": "votes", "until_decided": False}, 0),
    ],
)
def test_draws_that_cannot_change_the_choice_are_saved(client: TestClient, options: dict[str, Any], saved: int) -> None:
    answer = act(client, **options).json()
    assert (answer["draws_saved"], len(answer["candidates"])) == (saved, 7 - saved)


def test_a_chat_completion_asks_for_it_by_a_header(client: TestClient) -> None:
    asked = {"X-QGuide-Until-Decided": "true", "X-QGuide-Q-Model": "votes"}
    body = {"model": SCRIPTED, "messages": TASK, "qguide": {"num_candidates": 7}}
    answer = client.post("/v1/chat/completions", json=body, headers=asked).json()
    assert answer["qguide"]["draws_saved"] == 3
    assert "qguide_draws_saved_total 3.0" in client.get("/metrics").text


def test_a_rule_that_ranks_decides_nothing_before_the_last_draw(client: TestClient) -> None:
    answer = act(client, q_model="order")
    assert answer.status_code == 400
    assert "until_decided compares what was drawn" in answer.json()["error"]["message"]
