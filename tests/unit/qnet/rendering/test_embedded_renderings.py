"""The embedded models read the tokens that they were trained on, made by the first renderer."""

import json
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.models.loading import embedded_path, load_renderer
from qguide.qnet.types import Message, ToolCall

RENDERED: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "data/renderings/embedded.json").read_text())


@pytest.mark.parametrize("known", RENDERED, ids=lambda known: f"{known['model']} {known['name']}")
def test_the_tokens_are_those_of_the_first_renderer(known: dict[str, Any]) -> None:
    renderer = load_renderer(embedded_path(known["model"]))
    messages = tuple(
        Message(row["role"], row["content"], tuple(ToolCall(*call) for call in row["calls"]))
        for row in known["messages"]
    )
    state = renderer.encode_state(messages)
    said = [renderer.encode_candidate(m) for m in messages if m.role == "assistant"]
    assert state.token_ids == known["state"]
    assert [list(span) for span in state.action_spans] == known["spans"]
    assert renderer.encode_episode(messages).token_ids == known["episode"]
    assert said == known["candidates"]
    assert list(renderer.stop_token_ids) == known["stop"]
    assert renderer.renders_as_version_1
