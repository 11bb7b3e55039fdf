"""A scripted agent that opens drawers, a server that learns from it, and waits for what it does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

from fastapi.testclient import TestClient

from qguide.qnet.records import OfferRow
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings

DRAWERS = ("red", "blue", "green")
REPLIES = tuple(f"Action: open the {drawer} drawer" for drawer in DRAWERS)
RIGHT = {"ring": "red", "coin": "blue"}
PATIENCE_S = 300.0


def settings_of(folder: Path, url: str) -> Settings:
    """A server that learns, in front of a model that opens any drawer."""
    served = Upstream.model_validate({"url": url, "model": "fake-1"})
    return Settings(
        upstreams={"guesser": served}, policy="guesser", episodes_dir=folder, learn=True, learn_every=120, admin=True
    )


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def play(client: TestClient, number: int, chance: Random, key: str = "") -> None:
    """One episode of one step, with its outcome."""
    thing = chance.choice(list(RIGHT))
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": f"Find the {thing} of guest {number}."}],
        "seed": chance.randrange(99),
        "qguide": {"episode_id": f"e{number}"},
    }
    headers = bearer(key)
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    reply = answer.json()["choices"][0]["message"]["content"]
    outcome = {"reward": float(RIGHT[thing] in reply), "observation": "It is open."}
    ended = client.post(f"/v1/episodes/e{number}/outcome", json=outcome, headers=headers)
    assert ended.json()["recorded"]


def state(client: TestClient, key: str = "", **query: str) -> dict[str, Any]:
    """GET /v1/learning."""
    answer = client.get("/v1/learning", headers=bearer(key), params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what a fit or another replica does, asking less often the longer it takes."""
    began = monotonic()
    while not holds():
        waited_s = monotonic() - began
        assert waited_s < PATIENCE_S
        sleep(min(0.02 + waited_s / 8, 1.0))


def wait_for_fit(client: TestClient, key: str = "") -> dict[str, Any]:
    """The state once the first fit has ended."""
    wait_until(lambda: state(client, key)["fit"] is not None)
    return state(client, key)


def play_to_trial(client: TestClient, numbers: Iterator[int], chance: Random) -> int:
    """Episodes in the shadow of a version until it is tried; returns their number."""
    for played in range(60):
        if state(client)["phase"] == "trial":
            return played
        play(client, next(numbers), chance)
    raise AssertionError(state(client))


def offers(folder: Path) -> list[OfferRow]:
    """Rows of all steps that were recorded."""
    return [OfferRow.model_validate_json(line) for line in lines_of(folder, "offers-*")]


def lines_of(folder: Path, pattern: str) -> list[str]:
    """Lines of recorded files."""
    return [line for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]
