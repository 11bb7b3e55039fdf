"""The errands' agent against a model that never calls a tool."""

import runpy
from typing import Any

import openai
from fastapi import FastAPI

from tests.support.serving import ROOT, serving_app

AGENT = runpy.run_path(str(ROOT / "clients/python/examples/errands/agent.py"))
MOST_REPLIES = 50


def talker() -> tuple[FastAPI, list[str]]:
    """A server that answers in text, and the paths that it was asked for."""
    app, asked = FastAPI(), list[str]()

    @app.post("/v1/chat/completions")
    def complete() -> dict[str, Any]:
        asked.append("completion")
        assert len(asked) < MOST_REPLIES, "the agent asks for ever"
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "I would rather talk."},
        }
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    @app.post("/v1/episodes/{episode_id}/outcome")
    def outcome(episode_id: str) -> dict[str, str]:
        asked.append(episode_id)
        return {}

    return app, asked


def test_an_errand_ends_if_the_model_only_talks() -> None:
    app, asked = talker()
    with serving_app(app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        errand = AGENT["errands"]()[0]
        assert AGENT["Agent"](client).play(errand, "errand-0") == 0.0
    assert asked == ["completion"] * AGENT["MOST_CALLS"] + ["errand-0"]
