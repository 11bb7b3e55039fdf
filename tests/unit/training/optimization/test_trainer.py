"""The training loop: the schedule, resuming, and that it learns."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qnet.errors import ConfigError
from training.optimization.trainer import (
    STATE,
    Loop,
    Loss,
    Optimization,
    build_optimizers,
    cosine_with_warmup,
)


def build(output: Path, **changes: object) -> tuple[nn.Module, Loop]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimization = Optimization(lr=0.2, **changes)
    return model, Loop(model, optimization, output=output)


def loss_of(model: nn.Module) -> object:
    torch.manual_seed(1)
    x = torch.randn(64, 4)
    y = x.sum(-1, keepdim=True)

    def loss(rows: list[int]) -> Loss:
        error = model(x[rows]) - y[rows]
        return Loss((error**2).sum(), float(len(rows)))

    return loss


def dying(loss: Any, *, at: int | None) -> Any:
    """The loss, until the call of this number is interrupted; None interrupts none."""
    calls = iter(range(1000))

    def loss_or_interrupt(rows: list[int]) -> Loss:
        if next(calls) == at:
            raise KeyboardInterrupt
        return loss(rows)  # type: ignore[no-any-return]

    return loss_or_interrupt


STEPS = [[[i % 64, (i + 7) % 64], [(i + 3) % 64]] for i in range(40)]


def test_it_learns_and_writes_a_metric_per_step(tmp_path: Path) -> None:
    model, loop = build(tmp_path)
    loop.run(STEPS, loss_of(model), name="line", size=len)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert rows[-1]["loss"] < rows[0]["loss"] / 10


def test_a_killed_run_ends_where_an_unbroken_one_ends(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    whole, loop = build(tmp_path / "whole")
    loop.run(STEPS, loss_of(whole), name="line", size=len)  # type: ignore[arg-type]
    broken, loop = build(tmp_path / "broken", save_every_s=1e-9)
    with pytest.raises(KeyboardInterrupt):
        loop.run(STEPS, dying(loss_of(broken), at=30), name="line", size=len)
    assert (tmp_path / "broken" / STATE).is_file()
    again, loop = build(tmp_path / "broken", save_every_s=1e-9)
    loop.run(STEPS, loss_of(again), name="line", size=len)  # type: ignore[arg-type]
    assert torch.equal(whole.weight, again.weight)  # type: ignore[arg-type]
    rows = (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(1, 41))


def test_a_run_killed_before_its_first_save_begins_its_metrics_anew(tmp_path: Path) -> None:
    for killed_at in (30, 50, None):
        model, loop = build(tmp_path, save_every_s=3600)
        loss = dying(loss_of(model), at=killed_at)
        with pytest.raises(KeyboardInterrupt) if killed_at else nullcontext():
            loop.run(STEPS, loss, name="line", size=len)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(1, 41))


def test_the_schedule_warms_up_and_falls_to_zero() -> None:
    factors = [cosine_with_warmup(s, steps=100, warmup_ratio=0.1) for s in range(101)]
    assert factors[:10] == pytest.approx([0.1 * (s + 1) for s in range(10)])
    assert factors[10] == max(factors)
    assert factors[100] == pytest.approx(0.0)


def test_two_processes_end_where_one_ends(tmp_path: Path) -> None:
    ends = []
    for processes in (1, 2):
        (folder := tmp_path / str(processes)).mkdir()
        model, loop = build(folder, processes=processes, threads=1)
        loop.run([*STEPS, [[5]]], loss_of(model), name="line", size=len)  # type: ignore[arg-type]
        ends.append(model.weight)
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 41
    torch.testing.assert_close(ends[0], ends[1])


def test_what_is_dealt_to_whom_changes_nothing_but_float_sums(tmp_path: Path) -> None:
    ends: list[torch.Tensor] = []
    # Weighed by their number, then as if the first micro-batch were as long as all others.
    for size in (len, lambda rows: 100 if rows[0] == 0 else 1):
        (folder := tmp_path / str(len(ends))).mkdir()
        model, loop = build(folder, processes=2, threads=1)
        loop.run([[*STEPS[0], *STEPS[1]]] * 3, loss_of(model), name="line", size=size)  # type: ignore[arg-type]
        assert isinstance(model.weight, torch.Tensor)
        ends.append(model.weight)
    torch.testing.assert_close(ends[0], ends[1])


def test_the_last_weights_are_averaged_and_a_killed_run_averages_the_same(tmp_path: Path) -> None:
    shown: list[torch.Tensor] = []
    ends = []
    for at in (None, 35):
        (folder := tmp_path / str(at)).mkdir()
        model, loop = build(folder, average_last=0.25, save_every_s=1e-9)
        if at is None:
            hook = loop.optimizers[0].register_step_post_hook(
                lambda *_, m=model: shown.append(m.weight.detach().clone())
            )
            loop.run(STEPS, loss_of(model), name="line", size=len)  # type: ignore[arg-type]
            hook.remove()
        else:
            with pytest.raises(KeyboardInterrupt):
                loop.run(STEPS, dying(loss_of(model), at=2 * at), name="line", size=len)
            model, loop = build(folder, average_last=0.25, save_every_s=1e-9)
            loop.run(STEPS, loss_of(model), name="line", size=len)  # type: ignore[arg-type]
        ends.append(model.weight)
    torch.testing.assert_close(ends[0], torch.stack(shown[30:]).mean(0))
    assert torch.equal(ends[0], ends[1])  # type: ignore[arg-type]


def test_an_epoch_is_validated_with_the_averaged_weights(tmp_path: Path) -> None:
    model, loop = build(tmp_path, average_last=0.5)
    seen: list[torch.Tensor] = []

    def on_epoch(epoch: int) -> dict[str, float]:
        seen.append(model.weight.detach().clone())  # type: ignore[operator]
        return {}

    loop.run(
        STEPS,
        loss_of(model),  # type: ignore[arg-type]
        name="line",
        size=len,
        on_epoch=on_epoch,
        steps_per_epoch=40,
    )
    assert torch.equal(seen[0], model.weight)  # type: ignore[arg-type]


def test_processes_and_threads_are_not_mixed(tmp_path: Path) -> None:
    model, loop = build(tmp_path, processes=2)
    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match=r"set optimization\.threads to 1"):
            loop.run(STEPS, loss_of(model), name="line", size=len)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(1)


def test_muon_with_a_frozen_trunk_leaves_the_value_head_to_adamw() -> None:
    model = nn.ModuleDict({"layers": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    muon = Optimization(optimizer="muon")
    assert [type(o).__name__ for o in build_optimizers(model, muon)] == ["Muon", "AdamW"]
    model["layers"].requires_grad_(False)
    (adamw,) = build_optimizers(model, muon)
    assert [p for g in adamw.param_groups for p in g["params"]] == list(model["head"].parameters())
