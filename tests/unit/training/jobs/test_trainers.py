"""The two trainers: they learn, they can be killed, and what they write can be served."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_policy, load_qnet
from qguide.qnet.models.manifest import MergedLora
from qguide.qnet.types import Message, ToolCall
from qguide.training.data.runs import RunFolder, open_run
from qguide.training.jobs.sft import build_model, run_sft
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.optimization.options import Lora, Optimization, QNetOptimization
from qguide.training.policy_training.options import SftConfig
from qguide.training.q_training.options import TrainQNetConfig
from tests.support.echo import TINY, episode, labels_in, sft_config, trajectories_in
from tests.support.tiny_models import save_policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random policy."""
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    """A run folder with an expert's episodes."""
    return trajectories_in(tmp_path / "trajectories")


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """A run folder with labelled trees."""
    return labels_in(tmp_path / "labels")


def test_the_words_of_tool_calls_become_tokens(tmp_path: Path) -> None:
    shape = TINY.model_copy(update={"vocab_size": 400})
    config = SftConfig(trajectories=(), output=tmp_path, architecture=shape)
    call = Message("assistant", "", (ToolCall("open", '{"place": "drawer"}'),))
    _, tokenizer = build_model(config, [[Message("user", "Bring the spoon."), call]] * 3)
    assert {"place", "drawer"} <= set(tokenizer.tokenize(call.text))


def test_sft_learns_to_answer_and_qnet_learns_to_rank(tmp_path: Path, trajectories: Path, labels: Path) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft"))
    policy = load_policy(tmp_path / "sft" / "checkpoint")
    model: Any = policy.model
    for color in ("red", "blue"):
        ids = policy.renderer.encode_history(episode(color)[:1])
        reply = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        assert policy.renderer.decode_reply(reply[0, len(ids) :]) == episode(color)[1]

    config = TrainQNetConfig(
        labels=(labels,),
        trunk=tmp_path / "sft" / "checkpoint",
        output=tmp_path / "qnet",
        head_width=32,
        loss_on="last",
        ranking_weight=0.1,
        validation_fraction=0.2,
        optimization=QNetOptimization(lr=3e-3, epochs=8, batch_tokens=40, micro_batch_tokens=40),
    )
    manifest = run_train_qnet(config)
    assert manifest.metrics["sibling_accuracy"] == 1.0
    assert manifest.label_range == (0.0, 1.0)
    assert load_qnet(tmp_path / "qnet" / "checkpoint").manifest == manifest


def test_sft_teaches_an_answer_by_adapters(tmp_path: Path, trajectories: Path, policy: Path) -> None:
    options = Optimization(lora=Lora(rank=16), lr=0.02, epochs=15, batch_tokens=200, micro_batch_tokens=200)
    config = sft_config(trajectories, tmp_path / "sft", base=policy, optimization=options)
    manifest = run_sft(config)
    assert manifest.lora == MergedLora(rank=16, alpha=32)
    loaded = load_policy(tmp_path / "sft" / "checkpoint")
    assert loaded.manifest == manifest
    model: Any = loaded.model
    start, end = load_policy(policy).model.state_dict(), model.state_dict()
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {name for name in end if "_proj" in name}
    ids = loaded.renderer.encode_history(episode("red")[:1])
    reply = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert loaded.renderer.decode_reply(reply[0, len(ids) :]).content.startswith("Action: ")


def test_adapters_have_a_base(tmp_path: Path, trajectories: Path) -> None:
    with pytest.raises(ValidationError, match=r"optimization\.lora .* 16, .*base"):
        sft_config(trajectories, tmp_path, optimization=Optimization(lora=Lora()))


def test_starting_a_finished_run_again_changes_nothing(tmp_path: Path, trajectories: Path) -> None:
    config = sft_config(trajectories, tmp_path / "sft", optimization=Optimization(epochs=1))
    first = run_sft(config)
    metrics = RunFolder(tmp_path / "sft").metrics.read_text()
    assert run_sft(config).files == first.files
    assert RunFolder(tmp_path / "sft").metrics.read_text() == metrics


@pytest.mark.parametrize("job", ["sft", "train-qnet"])
def test_a_second_job_in_the_same_folder_is_refused(tmp_path: Path, trajectories: Path, labels: Path, job: str) -> None:
    sft = sft_config(trajectories, tmp_path / "run")
    train_qnet = TrainQNetConfig(labels=(labels,), trunk=tmp_path / "trunk", output=tmp_path / "run")
    config = sft if job == "sft" else train_qnet
    with open_run(tmp_path / "run", config), pytest.raises(ConfigError, match=r"job .*run; .*output"):
        run_sft(sft) if job == "sft" else run_train_qnet(train_qnet)


def test_a_run_is_not_resumed_under_another_config(tmp_path: Path, trajectories: Path) -> None:
    once = Optimization(epochs=1)
    run_sft(sft_config(trajectories, tmp_path / "sft", optimization=once))
    with pytest.raises(ConfigError, match="seed"):
        run_sft(sft_config(trajectories, tmp_path / "sft", optimization=once, seed=1))
