"""GPU code on a stand-in device, and on CUDA: nothing mixes devices, and the host seldom waits.

The device stays in a process for ever, so the last test runs the others in a process of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import PartialState
from torch import nn

from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.engine.tree_branches import has_recurrent_layers
from qguide.qnet.models.checkpoint import load_policy, load_q_model
from qguide.qnet.scoring.build import build_naive_scorer, build_serving_scorer, build_shared_prefix_scorer
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.types import Message, SampleRequest, Sampling, ScoreRequest
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.jobs.sft import run_sft
from qguide.training.jobs.train_dpo import run_train_dpo
from qguide.training.jobs.train_policy import run_train_policy
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.optimization.options import DpoOptimization, Lora, PolicyOptimization
from qguide.training.optimization.trainer import Loop
from qguide.training.policy_training.options import TrainDpoConfig, TrainPolicyConfig, TrainSimpoConfig
from qguide.training.policy_training.simpo import run_train_simpo
from tests.support import stand_in_device
from tests.support.alone import run_tests
from tests.support.architectures import steps, tiny_config, tiny_pair
from tests.support.devices import counted_synchronizations, needs_cuda
from tests.support.echo import groups_in, qnet_config, sft_config, trajectories_in
from tests.support.go_groups import groups_of
from tests.support.stand_in_device import NAME, Waits
from tests.support.tiny_models import policy_model, q_model, save_implicit_q, save_policy

_OWN_PROCESS = "STAND_IN_PROCESS"
DEVICE = os.environ.get(_OWN_PROCESS, "")

on_the_device = pytest.mark.skipif(not DEVICE, reason="runs in a process of its own, started below")

slow = pytest.mark.slow

HYBRIDS_AND_EXPERTS = ("lfm2", "qwen3_moe", *(pytest.param(name, marks=slow) for name in ("qwen3_5_text", "falcon_h1")))

CHECKPOINTS = {"gradient_checkpointing": True}

FEW = {"epochs": 1, "batch_tokens": 120, "micro_batch_tokens": 120}


@pytest.fixture
def waits() -> Iterator[Waits]:
    """The device, and what the host waits for."""
    if DEVICE == NAME and not hasattr(torch, NAME):
        stand_in_device.register()
    counted = counted_synchronizations if DEVICE == "cuda" else stand_in_device.counted_waits
    with counted() as waits:
        yield waits


@pytest.fixture
def trains_there(monkeypatch: pytest.MonkeyPatch, waits: Waits) -> Iterator[None]:
    """Trainings on the device, whose steps the host hardly waits for."""
    monkeypatch.setattr(PartialState, "default_device", property(lambda _: torch.device(DEVICE, 0)))
    one_step = Loop._one_step
    seen = []

    def counted(loop: Any, micro_batches: Any, **of: int) -> Any:
        waits.clear()
        result = one_step(loop, micro_batches, **of)
        # Without a mask, transformers looks whether positions are of one sequence: once for each micro-batch
        # of `sft`, and for each kind of a hybrid's layers in every tree that takes no state.
        trees = sum(map(len, micro_batches))
        trunk = getattr(loop.model, "trunk", loop.model)
        paths = loop.optimization.gradient_checkpointing and has_recurrent_layers(trunk)
        seen.append((Waits(waits), 2 * trees if paths else len(micro_batches)))
        return result

    monkeypatch.setattr(Loop, "_one_step", counted)
    yield
    assert seen
    for step, looks in seen:
        assert step.total() <= 1 + looks, step  # one for the loss


def steps_of_an_episode() -> list[ScoreRequest]:
    """Two steps with candidates that share beginnings."""
    first = (Message("user", "go to desk take mug from shelf open you see"),)
    said = [Message("assistant", text) for text in ("go to desk", "go to desk take mug", "see")]
    second = (*first, said[1], Message("user", "you see mug"))
    return [ScoreRequest(history, tuple(said)) for history in (first, second)]


def move(model: nn.Module) -> None:
    nn.Module.to(model, DEVICE)


@on_the_device
def test_what_a_gpu_refuses_is_refused_and_what_it_waits_for_is_counted(waits: Waits) -> None:
    there = torch.ones(3, 2, device=DEVICE)
    waits.clear()
    with pytest.raises(RuntimeError, match="same"):
        there + torch.ones(2)
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="implemented"):
        there.long() @ there.long().T
    assert waits.total() == 0
    assert (there[there > 0].sum().item(), there.tolist()[0]) == (6.0, [1.0, 1.0])
    assert waits.total() == 3
    waits.clear()
    torch.tensor([1], device=DEVICE)
    torch.tensor([1]).to(DEVICE, non_blocking=True)
    assert there[[0, 1]].shape == (2, 2)
    assert waits.total() == 2


@on_the_device
@pytest.mark.parametrize(
    ("architecture", "more"), [("llama", {}), pytest.param("gpt2", {}, marks=slow), ("mistral", {"sliding_window": 6})]
)
def test_a_step_is_scored_as_on_the_cpu_and_waits_for_its_values_alone(
    architecture: str, more: dict[str, Any], waits: Waits
) -> None:
    loaded = q_model(architecture, head_features="match-1", **more)
    expected = build_naive_scorer(loaded).score(steps_of_an_episode())
    move(loaded.model)
    scorer = build_shared_prefix_scorer(loaded, cache_bytes=10**8)
    for request, reference in zip(steps_of_an_episode(), expected, strict=True):
        waits.clear()
        [found] = scorer.score([request])
        assert found.q_values == pytest.approx(reference.q_values, abs=1e-5)
        assert waits.total() == 1, waits
    assert found.cached_tokens > 0


@on_the_device
@pytest.mark.parametrize("architecture", HYBRIDS_AND_EXPERTS)
def test_a_hybrid_and_experts_read_as_few_tokens_there_and_wait_once(architecture: str, waits: Waits) -> None:
    loaded, moved = tiny_pair(tiny_config(architecture))
    room = {"cache_bytes": 10**8, "tokens_per_forward": 256}
    expected = build_serving_scorer(loaded, **room, full_sequences=False)
    move(moved.model)
    scorer = build_serving_scorer(moved, **room, full_sequences=False)
    for request in steps():
        [reference] = expected.score([request])
        waits.clear()
        [found] = scorer.score([request])
        assert found.q_values == pytest.approx(reference.q_values, abs=1e-5)
        # More where the device's self-check had refused a way of running it.
        assert found.computed_tokens == reference.computed_tokens
        assert waits.total() == 1, waits


@on_the_device
@pytest.mark.parametrize("architecture", ["llama", pytest.param("lfm2", marks=slow)])
def test_an_implicit_q_waits_once_for_each_of_its_models(architecture: str, tmp_path: Path, waits: Waits) -> None:
    policy, reference = (save_policy(tmp_path / str(i), architecture, seed=i) for i in range(2))
    folder = save_implicit_q(tmp_path / "q", policy, reference)
    expected = build_naive_scorer(load_q_model(folder)).score(steps_of_an_episode())
    there = load_q_model(folder, device=DEVICE)
    scorer = build_serving_scorer(there, cache_bytes=10**8, tokens_per_forward=256, full_sequences=False)
    for request, one in zip(steps_of_an_episode(), expected, strict=True):
        waits.clear()
        [found] = scorer.score([request])
        assert found.q_values == pytest.approx(one.q_values, abs=1e-4)
        assert waits.total() == 2, waits


@on_the_device
def test_whole_sequences_are_scored_as_on_the_cpu(waits: Waits) -> None:
    loaded = q_model()
    expected = build_naive_scorer(loaded).score(steps_of_an_episode())
    move(loaded.model)
    scorer = FullSequenceScorer(loaded, tokens_per_forward=256)
    waits.clear()
    for found, one in zip(scorer.score(steps_of_an_episode()), expected, strict=True):
        assert found.q_values == pytest.approx(one.q_values, abs=1e-5)
    assert waits.of("send") == 0, waits


@on_the_device
def test_a_draw_waits_once_for_each_token(waits: Waits) -> None:
    policy = policy_model()
    request = SampleRequest((Message("user", "go to desk"),), 4, Sampling(temperature=0.8, max_tokens=6, seed=3))
    [expected] = LocalPolicy(policy).sample_batch([request])
    move(policy.model)
    there = LocalPolicy(policy)
    waits.clear()
    [found] = there.sample_batch([request])
    assert [one.message for one in found] == [one.message for one in expected]
    assert waits.total() <= 6, waits


@on_the_device
@pytest.mark.usefixtures("trains_there")
def test_sft_trains_there(tmp_path: Path) -> None:
    config = sft_config(trajectories_in(tmp_path / "said"), tmp_path / "sft")
    short = config.optimization.model_copy(update=FEW | {"average_last": 0.5})
    run_sft(config.model_copy(update={"optimization": short}))
    assert load_policy(tmp_path / "sft" / "checkpoint").model.device.type == "cpu"


@on_the_device
@pytest.mark.usefixtures("trains_there")
@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"gradient_checkpointing": True, "optimizer": "muon"}),
        ({"head_features": "match-1"}, {"lora": Lora(rank=4), "frozen_dtype": "bfloat16", "mixed_precision": "bf16"}),
        pytest.param({"head_bins": 11, "keep": "spearman"}, {}, marks=slow),
        pytest.param({"observation_weight": 0.1}, {}, marks=slow),
    ],
)
def test_a_qnet_trains_there_and_is_resumed(changes: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    groups = {
        "groups": (groups_in(tmp_path / "few", range(4)),),
        "held_back_groups": (groups_in(tmp_path / "back", range(90, 92)),),
    }
    config = qnet_config(tmp_path, save_policy(tmp_path / "policy"), **changes, **groups)
    short = config.optimization.model_copy(update=FEW | options)
    config = config.model_copy(update={"optimization": short})
    assert run_train_qnet(config).files == run_train_qnet(config).files
    loaded = load_q_model(config.output / "checkpoint", device=DEVICE)
    build_shared_prefix_scorer(loaded, cache_bytes=10**8).score(steps_of_an_episode())


@on_the_device
@pytest.mark.usefixtures("trains_there")
@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("lfm2", {}),
        ("qwen3_moe", CHECKPOINTS),
        pytest.param("qwen3_5_text", {}, marks=slow),
        *(pytest.param(name, CHECKPOINTS, marks=slow) for name in ("lfm2", "falcon_h1")),
    ],
)
def test_a_hybrid_and_experts_train_there(architecture: str, options: dict[str, Any], tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", tiny_config(architecture))
    config = qnet_config(tmp_path, policy, groups=(groups_in(tmp_path / "few", range(4)),), held_back_groups=())
    short = config.optimization.model_copy(update=FEW | options)
    run_train_qnet(config.model_copy(update={"optimization": short}))


@on_the_device
@pytest.mark.usefixtures("trains_there")
def test_pairs_and_groups_train_a_policy_there(tmp_path: Path) -> None:
    groups = groups_of(tmp_path / "groups", range(3))
    run_pairs(PairsConfig(groups=(groups,), output=tmp_path / "pairs"))
    policy = save_policy(tmp_path / "policy")
    run_train_dpo(
        TrainDpoConfig(
            pairs=(tmp_path / "pairs",),
            held_back_groups=(groups_of(tmp_path / "held_back", range(20, 22)),),
            policy=policy,
            output=tmp_path / "dpo",
            optimization=DpoOptimization(**FEW),
        )
    )
    run_train_simpo(
        TrainSimpoConfig(
            pairs=(tmp_path / "pairs",),
            policy=policy,
            output=tmp_path / "simpo",
            optimization=DpoOptimization(**FEW, lora=Lora(rank=4)),
        )
    )
    run_train_policy(
        TrainPolicyConfig(
            groups=(groups,),
            policy=policy,
            output=tmp_path / "grpo",
            kl=0.01,
            optimization=PolicyOptimization(**FEW, lora=Lora(rank=4)),
        )
    )


@pytest.mark.skipif(bool(DEVICE), reason="this is that process")
@pytest.mark.parametrize(
    ("device", "which", "passed"),
    [
        (NAME, "not slow", 14),
        pytest.param(NAME, "slow", 9, marks=slow),
        pytest.param("cuda", "slow or not slow", 23, marks=needs_cuda),
    ],
)
def test_all_of_these_pass_in_a_process_that_has_the_device(device: str, which: str, passed: int) -> None:
    variables = {_OWN_PROCESS: device}
    code: int | None
    if device == NAME:
        code, output = run_tests(["-m", which, __file__], cwd=Path.cwd(), variables=variables)
    else:
        # As `make gpu-check` calls pytest where the pinned packages may be others, or missing.
        flags = ["-W", "default", "-o", "addopts=--import-mode=importlib"]
        if find_spec("xdist") is not None:
            flags += ["-n", "4"]  # each compiles kernels of its own
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, "-m", which, __file__]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        code, output = done.returncode, done.stdout
    assert code == 0, output[-8000:]
    assert f"{passed} passed" in output
