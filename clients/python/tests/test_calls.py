"""Requests, without a server."""

from typing import Any

import pytest
from qguide_client import calls
from qguide_client.types import Messages


@pytest.mark.parametrize(
    ("query", "key"), [("find a mug", "query"), ([{"role": "user", "content": "find a mug"}], "messages")]
)
def test_rerank_sends_a_text_as_the_query_and_turns_as_the_history(query: Messages | str, key: str) -> None:
    call = calls.rerank(query, ["a", "b"], {"top_n": 1, "q_model": "shop", "episode_id": "e"})
    assert call.body == {key: query, "documents": ["a", "b"], "top_n": 1, "model": "shop", "episode_id": "e"}


def test_an_option_that_is_left_out_is_the_servers_to_choose() -> None:
    assert calls.act([], {}).body == {"messages": []}


def test_only_an_outcome_must_not_be_told_twice() -> None:
    assert not calls.outcome("e", 1.0, {}).repeatable
    assert calls.act([], {}).repeatable
    assert calls.score([], [], {}).repeatable
    assert calls.rerank("", [], {}).repeatable


def test_a_deadline_is_no_field_of_any_body() -> None:
    asked: list[calls.Call[Any]] = [
        calls.act([], {"deadline_s": 1.0}),
        calls.score([], [], {"deadline_s": 1.0}),
        calls.score_batch([], {"deadline_s": 1.0}),
        calls.rerank("", [], {"deadline_s": 1.0}),
        calls.chat([], {"deadline_s": 1.0}),
        calls.chat_stream([], {"deadline_s": 1.0}),
    ]
    for call in asked:
        assert call.deadline_s == 1.0
        assert "deadline_s" not in (call.body or {})
    assert calls.act([], {}).deadline_s is None
