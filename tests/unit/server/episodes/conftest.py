"""Episodes played over HTTP, and the records that they leave."""

import json
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES

TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}


def recording(folder: Path, **more: Any) -> Settings:
    return FAKES.model_copy(update={"episodes_dir": folder} | more)


def act(client: TestClient, messages: list[Any], **body: Any) -> Any:
    given = {"messages": messages, "episode_id": "e", "num_candidates": 3} | body
    response = client.post("/v1/act", json=given)
    assert response.status_code == 200, response.text
    return response.json()


def end(client: TestClient, reward: Any = 1.0, *, episode: str = "e", **more: Any) -> Any:
    return client.post(f"/v1/episodes/{episode}/outcome", json={"reward": reward} | more)


def then(messages: list[Any], action: str, observation: str) -> list[Any]:
    return [*messages, {"role": "assistant", "content": action}, {"role": "user", "content": observation}]


def play(client: TestClient, *, steps: int = 3, first: Any = (TASK,)) -> list[str]:
    """Take what is chosen; returns the actions."""
    messages, actions = list(first), []
    for step in range(steps):
        actions.append(act(client, messages)["action"])
        messages = then(messages, actions[-1], f"observation {step}")
    return actions


def rows(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]
