"""`qguide serve --scorer validity+votes` takes a vote among what any upstream draws."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.serving import serving, serving_app

START_S = 180.0
TASK = "Which city is the largest?"
REPLIES = ["Thought: a\nAction: search x", "Action: guess", "Thought: b\nAction: search x"]
OPTIONS = {"num_candidates": 3}


@pytest.fixture(scope="module")
def voting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a server that takes a vote among what an upstream draws."""
    log = tmp_path_factory.mktemp("rules") / "stderr.log"
    with serving_app(FakeUpstream(replies=REPLIES).app()) as upstream:
        options = ("--upstream", f"{upstream}/v1#fake-1", "--scorer", "validity+votes")
        with serving(*options, env={}, log=log, start_s=START_S) as url:
            yield url


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": TASK}]}),
        ("/v1/responses", {"input": TASK}),
        ("/v1/messages", {"messages": [{"role": "user", "content": TASK}], "max_tokens": 64}),
    ],
)
def test_replies_that_act_alike_outvote_the_others(voting: str, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(f"{voting}{path}", json=body | {"qguide": OPTIONS}, timeout=60)
    guidance = answer.raise_for_status().json()["qguide"]
    assert (guidance["guided"], guidance["chosen"] in (0, 2)) == (True, True)
    assert guidance["q_values"] == pytest.approx([2 / 3, 1 / 3, 2 / 3])
    assert guidance["prior"] == pytest.approx([2.5 / 4, 1.5 / 4, 2.5 / 4])


def test_the_own_dialect_votes_alike(voting: str) -> None:
    body = {"messages": [{"role": "user", "content": TASK}], "num_candidates": 3}
    answer = httpx.post(f"{voting}/v1/act", json=body, timeout=60).raise_for_status().json()
    assert answer["guided"] is True
    assert answer["action"].endswith("search x")


def test_the_callers_counts_are_votes(voting: str) -> None:
    body = {
        "messages": [{"role": "user", "content": TASK}],
        "candidates": ["Action: guess", "Action: search x"],
        "counts": [1, 4],
    }
    answer = httpx.post(f"{voting}/v1/score", json=body, timeout=60).raise_for_status().json()
    assert (answer["chosen"], answer["reason"]) == (1, "highest_q")
