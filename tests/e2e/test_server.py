"""The server as users have it: a process, a port, checkpoints on disk, a game played through it."""

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError, ScorerUnavailableError
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.jobs.play import PlayConfig, run_play
from tests.support.serving import serving_process
from tests.support.tiny_models import config_of, policy_model, renderer

CORRIDOR = CorridorConfig(first_seed=3, count=1)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy and a tiny QNet, saved as the jobs save theirs."""
    folder = tmp_path_factory.mktemp("checkpoints")
    tokenizer = renderer().tokenizer
    policy = policy_model(context=1024).model
    manifest = Manifest(kind="policy", name="tiny-policy", environment="fake")
    save_checkpoint(folder / "policy", model=policy, tokenizer=tokenizer, manifest=manifest)
    qnet = QNet(QNetConfig(trunk=config_of("llama", context=1024).to_dict(), head_width=16))
    manifest = Manifest(kind="qnet", name="tiny-q", environment="fake", target="q", read_at="last_token")
    save_checkpoint(folder / "qnet", model=qnet, tokenizer=tokenizer, manifest=manifest)
    return folder


@pytest.fixture(scope="module")
def url(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server process on a free port."""
    models = ("--policy", str(checkpoints / "policy"), "--q-model", str(checkpoints / "qnet"))
    with serving_process(tmp_path_factory.mktemp("server"), *models) as server:
        yield server.url


def test_a_checkpoint_answers_over_http(url: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "you see a desk"}],
        "num_candidates": 4,
        "max_tokens": 8,
        "seed": 1,
    }
    answer = httpx.post(f"{url}/v1/act", json=body, timeout=60).raise_for_status().json()
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    assert len(q_values) == 4
    assert q_values[answer["chosen"]] == max(q_values)
    assert answer["candidates"][answer["chosen"]]["message"]["content"] == answer["action"]
    assert (answer["policy"], answer["q_model"]) == ("tiny-policy", "scorer")


def test_scoring_what_was_drawn_gives_the_same_q(url: str) -> None:
    messages = [{"role": "user", "content": "you see a mug"}]
    drawn = {"messages": messages, "num_candidates": 3, "max_tokens": 8, "seed": 2}
    acted = httpx.post(f"{url}/v1/act", json=drawn, timeout=60).json()["candidates"]
    q_of_text = {c["message"]["content"]: c["q_value"] for c in acted if c["message"]["content"]}
    given = {"messages": messages, "candidates": list(q_of_text)}
    scored = httpx.post(f"{url}/v1/score", json=given, timeout=60).json()["scores"]
    assert [s["q_value"] for s in scored] == pytest.approx(list(q_of_text.values()), abs=1e-5)


def test_models_shows_what_the_manifests_say(url: str) -> None:
    listed = httpx.get(f"{url}/v1/models").json()
    [policy], [q_model] = listed["data"], listed["q_models"]
    assert (policy["kind"], policy["checkpoint"], policy["context"]) == ("policy", "tiny-policy", 1024)
    assert (q_model["kind"], q_model["target"], q_model["environment"]) == ("q_model", "q", "fake")


def test_play_shows_candidates_q_and_the_choice(url: str) -> None:
    shown = Console(file=io.StringIO(), width=100)
    reward = run_play(PlayConfig(CORRIDOR, url=url, num_candidates=3, max_steps=2), console=shown)
    assert reward == 0.0
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "Your task is to" in text
    assert text.count("▶") == 2
    assert text.count("█") >= 2
    assert "not done after 2 steps" in text


def test_play_says_how_to_start_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ScorerUnavailableError, match="make serve"):
        run_play(PlayConfig(CORRIDOR, url=nobody), console=Console(file=io.StringIO()))


def test_play_hands_on_why_the_server_refused(url: str) -> None:
    config = PlayConfig(CORRIDOR, url=url, num_candidates=1000)
    with pytest.raises(ScorerUnavailableError, match=r"num_candidates is 1000; .* 1 to 64"):
        run_play(config, console=Console(file=io.StringIO()))


def test_play_refuses_a_task_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"task is 5, .* 0 to 0"):
        run_play(PlayConfig(CORRIDOR, task=5), console=Console(file=io.StringIO()))
