"""Cohere's SDK, unmodified, against a real server on a free port."""

from collections.abc import Iterator

import cohere
import pytest
from cohere.core.api_error import ApiError

from qguide.server.app import create_app
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

TASK = "You see a desk. Your task is to: take the mug."
ACTIONS = ["Action: look", "Action: go to desk 1", "Action: inventory"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server with the scripted models, in a thread of this process."""
    settings = Settings(
        policy=SCRIPTED, q_models={"demo": SCRIPTED}, aliases={"rerank-v3.5": "demo"}, unknown_models="error"
    )
    with serving_app(create_app(settings)) as address:
        yield address


def test_coheres_sdk_reranks(url: str) -> None:
    with cohere.ClientV2(api_key="none", base_url=url) as client:
        answer = client.rerank(model="rerank-v3.5", query=TASK, documents=ACTIONS, top_n=2)
    assert [row.index for row in answer.results] == [1, 0]
    scores = [row.relevance_score for row in answer.results]
    assert 1 > scores[0] > scores[1] > 0
    assert answer.id
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert answer.meta.billed_units.search_units == 1


def test_coheres_sdk_of_before_reranks_objects_by_their_fields(url: str) -> None:
    documents = [{"action": action, "id": str(index)} for index, action in enumerate(ACTIONS)]
    with cohere.Client(api_key="none", base_url=url) as client:
        answer = client.rerank(query=TASK, documents=documents, rank_fields=["action"], return_documents=True)
    assert [row.index for row in answer.results] == [1, 0, 2]


def test_coheres_sdk_hands_on_why_it_was_refused(url: str) -> None:
    with cohere.ClientV2(api_key="none", base_url=url) as client, pytest.raises(ApiError) as refused:
        client.rerank(model="unknown", query=TASK, documents=ACTIONS)
    assert refused.value.status_code == 404
    assert "this server has default, demo, rerank-v3.5" in refused.value.body["error"]["message"]
