"""A classifier on a server gives the Q of the same classifier in this process, or a reason."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qguide.qnet.errors import (
    CheckpointError,
    ConfigError,
    InvalidCandidatesError,
    ScorerUnavailableError,
    UnscorableError,
)
from qguide.qnet.models.checkpoint import load_qnet
from qguide.qnet.models.classifier import load_remote_classifier
from qguide.qnet.models.model_export import export_model
from qguide.qnet.scoring.remote_classifier import RemoteClassifyScorer
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.scoring.vllm_client import ClassifyServer
from qguide.qnet.types import Message, ScoreRequest
from tests.contract.scorers.subjects import close_to, tried
from tests.support.scripted_vllm import Fault, ScriptedVllm, scripted_vllm
from tests.support.tiny_models import CONTEXT, renderer, save_classifier, save_policy, save_qnet

TASK = Message("user", "go to desk take mug from shelf")
SAID = tuple(Message("assistant", text) for text in ("go to desk", "take mug", "take", "take mug"))
REQUEST = ScoreRequest((TASK,), SAID)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose padding ends each reply, which is therefore not sent."""
    end = renderer().tokenizer.eos_token_id
    return save_classifier(tmp_path_factory.mktemp("reward"), pad_token_id=end)


@pytest.fixture
def server(folder: Path) -> Iterator[ScriptedVllm]:
    with scripted_vllm(folder, model="reward", context=CONTEXT, classifies=True) as state:
        yield state


def connect(folder: Path, url: str, *, timeout_s: float = 30.0) -> RemoteClassifyScorer:
    loaded = load_remote_classifier(folder, name="reward")
    client = ClassifyServer(url, model="reward", api_key="key", timeout_s=timeout_s)
    return RemoteClassifyScorer(loaded, client)


def test_q_is_the_logit_and_each_conversation_is_sent_once(folder: Path, server: ScriptedVllm) -> None:
    with closing(connect(folder, server.url)) as scorer:
        server.asked.clear()
        [found] = scorer.score([REQUEST])
    [expected] = NaiveScorer(load_qnet(folder)).score([REQUEST])
    assert found.q_values == close_to(expected.q_values)
    [body] = server.asked
    assert body["use_activation"] is False
    assert len(body["input"]) == len(set(SAID))
    assert found.computed_tokens == sum(map(len, body["input"]))
    assert server.keys == {"Bearer key"}


def test_callers_with_other_salts_share_no_request(folder: Path, server: ScriptedVllm) -> None:
    with closing(connect(folder, server.url)) as scorer:
        server.asked.clear()
        scorer.score([ScoreRequest((TASK,), SAID, cache_salt=salt) for salt in ("a", "b", "a")])
    assert [(body["cache_salt"], len(body["input"])) for body in server.asked] == [("a", 6), ("b", 3)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("status_500", "answered /classify with 500$"),
        ("garbage", r"/classify .*shape \(2"),
        ("one_state_short", "2 values .* 3 sequences"),
        ("truncated", r"\d+ tokens .* \d+"),
        ("silence", r"within 0\.3 s"),
    ],
)
def test_a_fault_has_a_reason_and_no_address(folder: Path, server: ScriptedVllm, fault: Fault, reason: str) -> None:
    with closing(connect(folder, server.url, timeout_s=0.3)) as scorer:
        server.fault = fault
        with pytest.raises(ScorerUnavailableError, match=reason) as failed:
            scorer.score([REQUEST])
        assert "127.0.0.1" not in str(failed.value)
        server.fault = ""
        assert len(scorer.score([REQUEST])[0].q_values) == len(SAID)


def test_what_the_server_refuses_is_not_asked_again(folder: Path, server: ScriptedVllm) -> None:
    with closing(connect(folder, server.url)) as scorer:
        server.fault = "status_400"
        with pytest.raises(UnscorableError, match=r"/classify .*400: token .* 9"):
            scorer.score([REQUEST])
        with pytest.raises(InvalidCandidatesError, match=r"candidates\[\]\.observation"):
            scorer.score([tried(REQUEST)])


def test_a_server_that_will_not_do_is_refused_when_it_is_connected(
    folder: Path, server: ScriptedVllm, tmp_path: Path
) -> None:
    server.fault = "not_finite"
    with pytest.raises(ConfigError, match=r"finite; .*--dtype"):
        connect(folder, server.url)
    server.fault, server.context = "", 100
    with pytest.raises(ConfigError, match=r"100 tokens .* 256; .*max_tokens to 100"):
        connect(folder, server.url)
    server.model = "other"
    with pytest.raises(ConfigError, match=r"other .*reward; .*model"):
        connect(folder, server.url)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1: .*\(ConnectError\)"):
        connect(folder, "http://127.0.0.1:1")
    several = save_classifier(tmp_path / "several", labels=3)
    with (
        scripted_vllm(several, model="reward", context=CONTEXT, classifies=True) as state,
        pytest.raises(ConfigError, match=r"3 values .*num_labels = 1"),
    ):
        connect(folder, state.url)


def test_a_server_that_gives_sigmoids_in_place_of_logits_is_refused(folder: Path, server: ScriptedVllm) -> None:
    server.fault = "always_activated"
    with pytest.raises(ConfigError, match=r'0 to 1 .*use_activation .*"problem_type": "regression"'):
        connect(folder, server.url)


@pytest.mark.parametrize("answers", [[0.2, 0.2], [2.0, -1.5]])
def test_a_server_without_an_activation_may_do_if_its_answers_are_logits(
    folder: Path, server: ScriptedVllm, answers: list[float]
) -> None:
    """A regression's are, by its configuration; others are where no probability could be."""
    server.fixed = answers
    server.classifier.config.problem_type = "regression"
    config = json.loads((folder / "config.json").read_text())
    regression = shutil.copytree(folder, folder.with_name(f"regression-{answers[0]}"))
    (regression / "config.json").write_text(json.dumps(config | {"problem_type": "regression"}))
    connect(regression, server.url).close()
    if answers == [0.2, 0.2]:
        with pytest.raises(ConfigError, match=r'0 to 1 .*use_activation .*"problem_type": "regression"'):
            connect(folder, server.url)
    else:
        connect(folder, server.url).close()


def test_the_folder_needs_no_weights_and_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "q", save_policy(tmp_path / "policy"), head="linear")
    with pytest.raises(CheckpointError, match=r"manifest\.json, .*qguide export-model"):
        load_remote_classifier(checkpoint, name="reward")
    exported = tmp_path / "exported"
    export_model(checkpoint, exported)
    with scripted_vllm(exported, model="reward", context=CONTEXT, classifies=True) as state:
        (exported / "model.safetensors").unlink()
        with closing(connect(exported, state.url)) as scorer:
            [found] = scorer.score([REQUEST])
    [expected] = NaiveScorer(load_qnet(checkpoint)).score([REQUEST])
    assert found.q_values == close_to(expected.q_values)
    config = json.loads((exported / "config.json").read_text())
    (exported / "config.json").write_text(json.dumps(config | {"qguide": {"files": {}}}))
    with pytest.raises(CheckpointError, match=r"config\.json: .*\bqguide .*export-model"):
        load_remote_classifier(exported, name="reward")
