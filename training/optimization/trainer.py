"""Training loop of the jobs: schedule, clipping, progress, metrics, resumption.

A job provides a model, its batches in order and a loss. The loop can be killed at any time: its
state is saved every `save_every_s` seconds, and the next start resumes from there with the same
order of batches.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from rich.progress import Progress
from torch import Tensor, nn

from training.optimization.muon import Muon
from training.optimization.parallel import all_reduce_sum, assign, data_parallel
from training.optimization.weight_average import WeightAverage

STATE = "training_state.pt"


class Optimization(BaseModel):
    """Options of the optimizer and the batches; the defaults are QLASS's for fine-tuning an LLM.

    Attributes:
        optimizer: "muon" orthogonalises the updates of hidden matrices and leaves the rest to
            AdamW; it learns faster from scratch.
        batch_tokens: minimum number of tokens in an optimizer step, which consists of whole
            micro-batches. The papers count sequences instead (64).
        micro_batch_tokens: maximum number of tokens, padding included, that go through the model
            at once.
        average_last: share of the steps, at the end of the training, over which the weights are
            averaged; validation and the result use the average.
        processes: number of processes that divide each step's micro-batches among them, on a CPU.
            With more than one, `threads` must be 1, and each step should have at least as many
            micro-batches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = Field(default=1e-5, gt=0)
    muon_lr: float = Field(default=0.01, gt=0)
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=3, ge=1)
    average_last: float = Field(default=0.0, ge=0, lt=1)
    batch_tokens: int = Field(default=16_384, ge=1)
    micro_batch_tokens: int = Field(default=8_192, ge=1)
    threads: int = Field(default=0, ge=0, description="0 leaves torch's own choice")
    processes: int = Field(default=1, ge=1)
    save_every_s: float = Field(default=120.0, gt=0)


@dataclass(frozen=True, slots=True)
class Loss:
    """Summed loss of a micro-batch and its total weight, from which a step's exact mean follows."""

    total: Tensor
    weight: float


def cosine_with_warmup(step: int, *, steps: int, warmup_ratio: float) -> float:
    """Factor of the learning rate at `step`: linear warm-up to 1, then a cosine down to 0."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def build_optimizers(model: nn.Module, optimization: Optimization) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon for the hidden matrices and AdamW for the rest."""
    trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if optimization.optimizer == "adamw":
        return [_adamw([p for _, p in trainable], optimization)]
    hidden = [p for n, p in trainable if p.ndim == 2 and "layers" in n]
    chosen = {id(p) for p in hidden}
    rest = [p for _, p in trainable if id(p) not in chosen]
    if not hidden:  # a frozen trunk: only the value head learns
        return [_adamw(rest, optimization)]
    muon = Muon(hidden, lr=optimization.muon_lr, weight_decay=optimization.weight_decay)
    return [muon, _adamw(rest, optimization)]


def _adamw(parameters: list[nn.Parameter], optimization: Optimization) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=optimization.lr,
        betas=(0.9, 0.95),
        weight_decay=optimization.weight_decay,
    )


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient; zeros if this process had no micro-batch."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class Loop:
    """Training loop of one model; its metrics and saved state are in the run folder."""

    def __init__(self, model: nn.Module, optimization: Optimization, *, output: Path) -> None:
        self.model = model
        self.optimization = optimization
        self.output = output
        self.optimizers = build_optimizers(model, optimization)
        self._base_lrs = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self._average = WeightAverage()
        self._saved_at = time.monotonic()
        self.step = 0
        if optimization.threads:
            torch.set_num_threads(optimization.threads)

    def run(
        self,
        steps: Sequence[Sequence[Any]],
        loss: Callable[[Any], Loss],
        *,
        name: str,
        size: Callable[[Any], int],
        on_epoch: Callable[[int], dict[str, float]] | None = None,
        steps_per_epoch: int = 0,
    ) -> None:
        """Train on `steps`, each a list of micro-batches, from a saved state if there is one.

        Args:
            steps: all steps of the training, in order.
            loss: computes the loss of one micro-batch.
            name: shown beside the progress bar.
            size: number of tokens in a micro-batch, by which processes divide a step.
            on_epoch: called with an epoch's number at its end; returns figures for
                `metrics.jsonl`.
            steps_per_epoch: number of steps after which `on_epoch` is called; 0 for never.
        """
        self._resume()
        self.model.train()
        one_step = partial(self._one_step, loss=loss, size=size, total_steps=len(steps))
        helping = partial(self._help, steps, one_step)
        with data_parallel(self.optimization.processes, helping), Progress() as progress:
            bar = progress.add_task(name, total=len(steps), completed=self.step)
            while self.step < len(steps):
                started = time.monotonic()
                mean = one_step(steps[self.step])
                self._count_step(len(steps))
                row = {"step": self.step, "loss": mean, "step_s": time.monotonic() - started}
                if on_epoch and steps_per_epoch and self.step % steps_per_epoch == 0:
                    row |= self._epoch_figures(on_epoch, self.step // steps_per_epoch)
                self._log(row)
                progress.update(bar, completed=self.step, description=f"{name} loss {mean:.4f}")
                if time.monotonic() - self._saved_at > self.optimization.save_every_s:
                    self._save()
        self._save()
        self._average.copy_to(self.model)

    def _count_step(self, total_steps: int) -> None:
        self.step += 1
        if self.step > total_steps * (1 - self.optimization.average_last):
            self._average.update(self.model)

    def _epoch_figures(
        self, on_epoch: Callable[[int], dict[str, float]], epoch: int
    ) -> dict[str, float]:
        """Figures of the averaged weights; the model trains on afterwards."""
        with self._average.applied(self.model):
            figures = on_epoch(epoch)
        self.model.train()
        return figures

    def _help(self, steps: Sequence[Sequence[Any]], one_step: Callable[[Any], float]) -> None:
        """Take part in every step, in a process other than the first."""
        for step in range(self.step, len(steps)):
            self.step = step
            one_step(steps[step])

    def _one_step(
        self,
        micro_batches: Sequence[Any],
        *,
        loss: Callable[[Any], Loss],
        size: Callable[[Any], int],
        total_steps: int,
    ) -> float:
        factor = cosine_with_warmup(
            self.step, steps=total_steps, warmup_ratio=self.optimization.warmup_ratio
        )
        for optimizer, lrs in zip(self.optimizers, self._base_lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = lr * factor
        sums = torch.zeros(2, dtype=torch.float32)
        for micro_batch in assign(micro_batches, size=size):
            part = loss(micro_batch)
            part.total.backward()
            sums += torch.tensor([float(part.total.detach()), part.weight])
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        if self.optimization.processes > 1:
            all_reduce_sum([sums, *(_gradient(p) for p in trainable)])
        weight = float(sums[1])
        for parameter in trainable:
            if parameter.grad is not None:
                parameter.grad.div_(weight)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.optimization.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(sums[0]) / weight

    def _log(self, row: dict[str, float]) -> None:
        with (self.output / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _save(self) -> None:
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "average": self._average.state_dict(),
        }
        partial = self.output / f"{STATE}.partial"
        torch.save(state, partial)
        partial.replace(self.output / STATE)
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        path = self.output / STATE
        if path.is_file():
            state = torch.load(path, weights_only=True)
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self._average.load_state_dict(state["average"])
            self.step = int(state["step"])
        self._drop_metrics_after(self.step)

    def _drop_metrics_after(self, step: int) -> None:
        """Keep only the rows of saved steps; later steps are trained and logged again."""
        path = self.output / "metrics.jsonl"
        if path.is_file():
            rows = path.read_text().splitlines()[:step]
            unfinished = path.with_suffix(".partial")
            unfinished.write_text("".join(f"{row}\n" for row in rows))
            unfinished.replace(path)
