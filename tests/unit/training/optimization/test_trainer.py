"""The training loop: it learns, on any hardware, and ends alike however its work is divided."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.optimizers import build_optimizers, cosine_with_warmup
from qguide.training.optimization.options import Optimization
from tests.support.devices import needs_cuda
from tests.support.tiny_models import q_model
from tests.support.trainings import STEPS, LossOf, line_loss, train, weights_of

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("auto", marks=needs_cuda, id="cuda")])


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def dying(*, at: int | None) -> LossOf:
    """The line's loss, until the call of this number is interrupted; None interrupts none."""

    def loss_of(model: nn.Module) -> Callable[[list[int]], Loss]:
        calls, loss = iter(range(1000)), line_loss(model)

        def loss_or_interrupt(rows: list[int]) -> Loss:
            if next(calls) == at:
                raise KeyboardInterrupt
            return loss(rows)

        return loss_or_interrupt

    return loss_of


@devices
def test_it_learns_and_writes_a_metric_per_step(tmp_path: Path, device: str) -> None:
    model = train(tmp_path, device=device)
    rows = rows_of(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert rows[-1]["loss"] < rows[0]["loss"] / 10
    on_cuda = device == "auto"
    assert all(parameter.is_cuda == on_cuda for parameter in model.parameters())


def test_a_killed_run_ends_where_an_unbroken_one_ends(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", loss_of=dying(at=30), save_every_s=1e-9)
    [state] = (tmp_path / "broken").glob("state-*")
    assert state.name == "state-000015"
    again = train(tmp_path / "broken", save_every_s=1e-9)
    assert torch.equal(weights_of(whole), weights_of(again))
    assert [row["step"] for row in rows_of(tmp_path / "broken")] == list(range(1, 41))
    [state] = (tmp_path / "broken").glob("state-*")
    assert state.name == "state-000040"


def test_a_finished_run_that_starts_again_changes_nothing(tmp_path: Path) -> None:
    ends = [train(tmp_path, average_last=0.25) for _ in range(2)]
    assert torch.equal(weights_of(ends[0]), weights_of(ends[1]))
    assert len(rows_of(tmp_path)) == 40


def test_a_run_killed_before_its_first_save_begins_its_metrics_anew(tmp_path: Path) -> None:
    for killed_at in (30, 50, None):
        with pytest.raises(KeyboardInterrupt) if killed_at else nullcontext():
            train(tmp_path, loss_of=dying(at=killed_at), save_every_s=3600)
    assert [row["step"] for row in rows_of(tmp_path)] == list(range(1, 41))


def test_the_schedule_warms_up_and_falls_to_zero() -> None:
    factors = [cosine_with_warmup(s, steps=100, warmup_ratio=0.1) for s in range(101)]
    assert factors[:10] == pytest.approx([0.1 * (s + 1) for s in range(10)])
    assert factors[10] == max(factors)
    assert factors[100] == pytest.approx(0.0)


@pytest.mark.alone
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_two_processes_end_where_one_ends(tmp_path: Path, optimizer: str) -> None:
    # The last step has one micro-batch, so the second process has none of its own.
    steps = [*STEPS, [[5]]]
    ends = []
    for processes in (1, 2):
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module("layers", nn.Linear(4, 4))
        model.add_module("head", nn.Linear(4, 1))
        folder = tmp_path / str(processes)
        train(folder, model=model, steps=steps, processes=processes, optimizer=optimizer, lr=0.02)
        ends.append(weights_of(model))
        assert len(rows_of(folder)) == 41
    torch.testing.assert_close(ends[0], ends[1])
    losses = [[row["loss"] for row in rows_of(tmp_path / name)] for name in ("1", "2")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.alone
def test_weights_that_a_micro_batch_does_not_use_are_trained_by_the_others(tmp_path: Path) -> None:
    def loss_of(model: Any) -> Callable[[list[int]], Loss]:
        def loss(rows: list[int]) -> Loss:
            part = model[rows[0] % 2]  # as with experts: each row takes one of them
            return Loss((part(torch.ones(4)) - 1.0).square().sum(), 1.0)

        return loss

    ends = []
    for processes in (1, 2):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        folder = tmp_path / str(processes)
        train(folder, model=model, loss_of=loss_of, steps=[[[0], [1]]] * 5, processes=processes)
        ends.append(weights_of(model))
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.alone
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is another device")
def test_without_another_device_the_processes_of_auto_divide_the_work(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def loss_of(model: Any) -> Callable[[list[int]], Loss]:
        def loss(rows: list[int]) -> Loss:
            with done.open("a") as file:
                file.write(f"{rows[0]} {os.getpid()}\n")
            return Loss(model(torch.ones(4)).square().sum(), 1.0)

        return loss

    train(tmp_path, loss_of=loss_of, steps=[[[0], [1]]], device="auto", processes=2)
    rows, workers = zip(*(line.split() for line in done.read_text().splitlines()), strict=True)
    assert sorted(rows) == ["0", "1"]
    assert len(set(workers)) == 2


@pytest.mark.alone
def test_how_work_is_divided_changes_nothing_but_float_sums(tmp_path: Path) -> None:
    ends: list[torch.Tensor] = []
    # Weighed by their number, then as if the first micro-batch were as long as all others.
    for size in (len, lambda rows: 100 if rows[0] == 0 else 1):
        folder = tmp_path / str(len(ends))
        model = train(folder, steps=[[*STEPS[0], *STEPS[1]]] * 3, size=size, processes=2)
        ends.append(weights_of(model))
    torch.testing.assert_close(ends[0], ends[1])


@devices
def test_accumulated_micro_batches_equal_one_large_batch(tmp_path: Path, device: str) -> None:
    small = [[[0, 1], [2], [3, 4, 5]], [[6], [7, 8]]]
    large = [[list(chain.from_iterable(step))] for step in small]
    ends = [
        weights_of(train(tmp_path / name, steps=steps, device=device))
        for name, steps in (("small", small), ("large", large))
    ]
    torch.testing.assert_close(ends[0], ends[1])


@devices
def test_bf16_computes_in_bfloat16_and_keeps_float32_weights(tmp_path: Path, device: str) -> None:
    computed: list[torch.dtype] = []

    def loss_of(model: nn.Module) -> Callable[[list[int]], Loss]:
        model.register_forward_hook(lambda *call: computed.append(call[-1].dtype))
        return line_loss(model)

    model = train(tmp_path, loss_of=loss_of, mixed_precision="bf16", device=device)
    assert set(computed) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    rows = rows_of(tmp_path)
    assert rows[-1]["loss"] < rows[0]["loss"] / 10


def q_loss(model: Any) -> Callable[[list[int]], Loss]:
    def loss(tokens: list[int]) -> Loss:
        q_BT = model(torch.tensor([tokens], device=model.device))
        return Loss((q_BT - 0.5).square().sum(), float(len(tokens)))

    return loss


@devices
def test_checkpointing_computes_layers_again_and_ends_alike(tmp_path: Path, device: str) -> None:
    ends, calls = [], []
    for checkpointing in (False, True):
        model: QNet = q_model("llama").model
        seen: list[int] = []
        model.trunk.layers[0].mlp.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
        train(
            tmp_path / str(checkpointing),
            model=model,
            loss_of=q_loss,
            steps=[[[1, 2, 3], [4, 5]]] * 2,
            lr=1e-3,
            gradient_checkpointing=checkpointing,
            device=device,
        )
        ends.append(weights_of(model))
        calls.append(len(seen))
    torch.testing.assert_close(ends[0], ends[1])
    assert calls == [4, 8]


def test_a_model_that_cannot_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"gradient_checkpointing is true, .*Linear .*optimization\.gradient_checkpointing to false"
    ):
        train(tmp_path, gradient_checkpointing=True)


def test_the_last_weights_are_averaged_and_a_killed_run_averages_the_same(tmp_path: Path) -> None:
    shown: list[torch.Tensor] = []

    def record(loop: Any) -> None:
        model = loop.model
        loop.optimizers[0].register_step_post_hook(lambda *_: shown.append(weights_of(model)))

    whole = train(tmp_path / "whole", average_last=0.25, inspect=record)
    torch.testing.assert_close(weights_of(whole), torch.stack(shown[30:40]).mean(0))
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train(broken, average_last=0.25, save_every_s=1e-9, loss_of=dying(at=70))
    again = train(broken, average_last=0.25, save_every_s=1e-9)
    assert torch.equal(weights_of(whole), weights_of(again))


def test_an_epoch_is_validated_with_the_averaged_weights(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    model = nn.Linear(4, 1)

    def validate() -> dict[str, float]:
        seen.append(weights_of(model))
        return {"seen": float(len(seen))}

    train(tmp_path, model=model, average_last=0.5, validate=validate)
    assert torch.equal(seen[0], weights_of(model))
    assert rows_of(tmp_path)[-1]["seen"] == 1.0


def test_processes_and_threads_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 threads; .*optimization\.threads to 1"):
        train(tmp_path, processes=2, threads=2)
    torch.set_num_threads(1)


def test_processes_of_a_launcher_are_not_divided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"processes is 2, .* 4 processes .*optimization\.processes to 1"):
        train(tmp_path, processes=2)


@pytest.mark.alone
def test_a_saved_state_is_not_resumed_by_another_number_of_processes(tmp_path: Path) -> None:
    train(tmp_path, steps=STEPS[:2], processes=2)
    with pytest.raises(ConfigError, match=r"2 processes, .* 1"):
        train(tmp_path)


def test_a_state_of_before_that_does_not_tell_its_processes_is_resumed(tmp_path: Path) -> None:
    whole, broken = train(tmp_path / "whole"), tmp_path / "broken"
    train(broken, steps=STEPS[:2])
    [told] = broken.glob("state-*/progress.json")
    told.write_text(json.dumps({name: value for name, value in json.loads(told.read_text()).items() if "step" in name}))
    assert torch.equal(weights_of(train(broken)), weights_of(whole))


@pytest.mark.alone
def test_processes_are_not_forked_where_a_gpu_would_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="accelerate launch --num_processes 2"):
        train(tmp_path, device="auto", processes=2)
    train(tmp_path, device="cpu", processes=2)


def test_tensorboard_gets_the_metrics(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, trackers=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "qguide"))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    assert logged == [(r["step"], pytest.approx(r["loss"])) for r in rows_of(tmp_path)]


def test_a_tracker_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install wandb"):
        train(tmp_path, trackers=["wandb"])


def test_muon_with_a_frozen_trunk_leaves_the_value_head_to_adamw() -> None:
    model = nn.ModuleDict({"layers": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    muon = Optimization(optimizer="muon")
    assert [type(o).__name__ for o in build_optimizers(model, muon)] == ["Muon", "AdamW"]
    model["layers"].requires_grad_(False)
    (adamw,) = build_optimizers(model, muon)
    assert [p for g in adamw.param_groups for p in g["params"]] == list(model["head"].parameters())
