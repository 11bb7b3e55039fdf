"""The one loop of all trainings: schedule, clipping, progress, metrics, resumption, best epoch.

A job provides an `Objective`. Accelerate provides the hardware: the CPU, one GPU, or several
processes, with the whole model in each or a shard of it (FSDP2). The loop can be killed at any
time: its state is saved every `save_every_s` seconds, and the next start resumes from there with
the same order of batches.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from rich.progress import Progress
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule

from qguide.qnet.models.manifest import Manifest
from qguide.training.data.runs import open_run
from qguide.training.optimization.accelerator import ModelHost, build_accelerator, enable_gradient_checkpointing
from qguide.training.optimization.adapters import hold_frozen, merged, with_adapters
from qguide.training.optimization.even_passes import EvenPasses
from qguide.training.optimization.launch import (
    all_reduce_sum,
    assign,
    copy_weights_of_main,
    in_processes,
    sum_gradients,
)
from qguide.training.optimization.objective import Model, Objective
from qguide.training.optimization.optimizers import build_optimizers, cosine_with_warmup
from qguide.training.optimization.options import Optimization, TrainingConfig
from qguide.training.optimization.training_state import TrainingState
from qguide.training.optimization.weight_average import BestWeights, WeightAverage

METRICS: Final = "metrics.jsonl"


class TrainingMetrics:
    """Writer of a run's metrics; only the main process writes."""

    def __init__(self, accelerator: Accelerator, folder: Path, config: Mapping[str, object]) -> None:
        self._accelerator = accelerator
        self._path = folder / METRICS
        if accelerator.log_with:
            plain = {k: v for k, v in config.items() if isinstance(v, int | float | str)}
            accelerator.init_trackers("qguide", config=plain)

    def start_after(self, step: int) -> None:
        """Keep only the rows of saved steps; later steps are trained and logged again."""
        if self._accelerator.is_main_process and self._path.is_file():
            rows = self._path.read_text().splitlines()[:step]
            unfinished = self._path.with_suffix(".partial")
            unfinished.write_text("".join(f"{row}\n" for row in rows))
            unfinished.replace(self._path)

    def log(self, row: Mapping[str, float]) -> None:
        """Write the figures of one step."""
        if self._accelerator.is_main_process:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        if self._accelerator.trackers:
            figures = {name: value for name, value in row.items() if name != "step"}
            self._accelerator.log(figures, step=int(row["step"]))

    def close(self) -> None:
        """Write out what trackers have buffered."""
        for tracker in self._accelerator.trackers:
            tracker.finish()


Config = TypeVar("Config", bound=TrainingConfig)
Result = TypeVar("Result")


def train(config: Config, build: Callable[[Config], Objective[Model]], *, weights: Mapping[str, str]) -> Manifest:
    """Train for an objective, and write the checkpoint that it saves."""
    with open_run(config.output, config, weights=weights):
        torch.manual_seed(config.seed)
        objective = build(config)

        def fit() -> Manifest:
            loop = Loop(objective, config.optimization, output=config.output)
            figures = loop.run()
            assessed = loop.evaluate(objective.assess)
            return loop.write(lambda model: objective.save(model, figures, assessed))

        return in_processes(config.optimization, fit)


class Loop(Generic[Model]):
    """Training loop of one objective; its metrics and saved state are in the run folder.

    The model is on the training device from here on, with adapters if `optimization.lora` is set.
    With FSDP it stays on the CPU, and whole, until `run`.
    """

    def __init__(self, objective: Objective[Model], optimization: Optimization, *, output: Path) -> None:
        self.objective = objective
        self.model = model = with_adapters(objective.model, optimization.lora)
        self.optimization = optimization
        self.step = 0
        if optimization.threads:
            torch.set_num_threads(optimization.threads)
        hold_frozen(model, optimization)
        self._accelerator = build_accelerator(optimization, output)
        self._even_passes: EvenPasses | None = None
        if not self._accelerator.is_fsdp2:
            model.to(self.device)
        elif not objective.one_pass and EvenPasses.are_needed(model):
            self._even_passes = EvenPasses(model)
        if optimization.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        self._host: nn.Module = ModelHost(model)
        self.optimizers = build_optimizers(model, optimization)
        self._base_lrs = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self._average = WeightAverage(model)
        self._state = TrainingState(self._accelerator, self._average, output)
        self._metrics = TrainingMetrics(self._accelerator, output, optimization.model_dump())
        self._best = BestWeights(output, objective.keep)
        self._saved_at = time.monotonic()

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self._accelerator.device
        return device

    def run(self) -> dict[str, float]:
        """Train from a saved state if there is one; all processes have to call this.

        Returns:
            Validation figures of the weights that the model ends with: those of the epoch that the
            objective keeps.
        """
        objective = self.objective
        objective.prepare(self.device)
        with self._accelerator.main_process_first(), self._accelerator.autocast():
            objective.precompute(self.device)
        self._prepare()
        steps = [step for epoch in objective.epochs for step in epoch]
        epoch_ends = set(accumulate(map(len, objective.epochs)))
        figures: dict[str, float] = {}
        self.step = self._state.load()
        self._metrics.start_after(self.step)
        self.model.train()
        with Progress(disable=not self._accelerator.is_main_process) as progress:
            bar = progress.add_task(objective.title, total=len(steps), completed=self.step)
            while self.step < len(steps):
                started = time.monotonic()
                mean, save = self._one_step(steps[self.step], of=len(steps))
                self._count_step(len(steps))
                row = {"step": self.step, "loss": mean, "step_s": time.monotonic() - started}
                if self.step in epoch_ends:
                    figures = self._end_epoch()
                    row |= figures
                self._metrics.log(row)
                shown = f"{objective.title} loss {mean:.4f}"
                progress.update(bar, completed=self.step, description=shown)
                if save:
                    self._save()
        self._save()
        self._average.apply()
        self._metrics.close()
        if self._restore_best():
            return self._best.figures
        # A run that had ended before has seen no epoch now.
        return figures or self.evaluate(objective.validate)

    def _prepare(self) -> None:
        """Hand the model and the optimizers to accelerate, which shards the weights with FSDP."""
        if self._accelerator.is_fsdp2:
            self._host, *self.optimizers = self._accelerator.prepare(self._host, *self.optimizers)
            return
        # Not wrapped in DDP (see `all_reduce`): only mixed precision is wanted.
        self._host = self._accelerator.prepare_model(self._host, evaluation_mode=True)
        self.optimizers = [self._accelerator.prepare_optimizer(o) for o in self.optimizers]
        copy_weights_of_main(self.model)

    def evaluate(self, function: Callable[[], Result]) -> Result:
        """Call a function that uses the model, in all processes; the main one's result in all."""
        results: list[Result] = [self._host(function)]
        for module in self._host.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # a backward pass would have done it
        broadcast_object_list(results)
        return results[0]

    def _restore_best(self) -> bool:
        weights = self._best.load()
        if weights is None:
            return False
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, weights, options=options)
        return True

    def write(self, save: Callable[[Model], Result]) -> Result:
        """Call `save` with the whole model, in float32, in the main process; its result in all.

        Adapters are merged for good: the loop cannot run afterwards.
        """
        # Adapters are added to matrices in float32: bfloat16 would round most of them away.
        model = self._whole_model().float()
        results: list[Any] = [save(merged(model)) if self._accelerator.is_main_process else None]
        broadcast_object_list(results)
        result: Result = results[0]
        return result

    def _one_step(self, micro_batches: Sequence[list[int]], *, of: int) -> tuple[float, bool]:
        """Train one step of `of`; its mean loss, and whether it is time to save."""
        self._set_learning_rates(of)
        sums = self._add_gradients(micro_batches)
        parameters = [p for p in self._host.parameters() if p.requires_grad]
        if not self._accelerator.is_fsdp2:
            sum_gradients(parameters)
        all_reduce_sum([sums])
        total, weight, save = sums.tolist()
        # FSDP has averaged the gradients over the processes instead of adding them up.
        divisor = weight / self._accelerator.num_processes if self._accelerator.is_fsdp2 else weight
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
        self._accelerator.clip_grad_norm_(self._host.parameters(), self.optimization.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total / weight, save > 0

    def _add_gradients(self, micro_batches: Sequence[list[int]]) -> Tensor:
        """Backward passes of this process's micro-batches; sums of loss and weight, time to save.

        The last number is above 0 in the main process when it is time to save, so that after the
        sum over all processes each of them knows.
        """
        if self._accelerator.is_fsdp2 and not self.objective.one_pass:
            # Every pass gathers weights, so processes have to make equally many.
            micro_batches = [[row] for micro_batch in micro_batches for row in micro_batch]
        mine = assign(
            micro_batches,
            size=self.objective.size,
            rank=self._accelerator.process_index,
            ranks=self._accelerator.num_processes,
            even=self._accelerator.is_fsdp2,
        )
        sums = torch.zeros(3, device=self.device)
        passes = [(item, 1.0) for item in mine.items] + [(item, 0.0) for item in mine.fillers]
        for micro_batch, counts in passes:
            total, weight = self._host(self._parts_of_loss, micro_batch)
            self._accelerator.backward(total if counts else total * 0.0)
            sums[0] += total.detach() * counts
            sums[1] += weight * counts
        due = time.monotonic() - self._saved_at > self.optimization.save_every_s
        # Not by an assignment, which would copy the number and wait for the device.
        sums[2].fill_(self._accelerator.is_main_process and due)
        return sums

    def _parts_of_loss(self, micro_batch: Sequence[int]) -> tuple[Tensor, float]:
        """The loss as a tuple, in which FSDP finds the tensor."""
        loss = partial(self.objective.loss, micro_batch)
        parts = self._even_passes.of(loss) if self._even_passes else loss()
        return parts.total, parts.weight

    def _set_learning_rates(self, steps: int) -> None:
        factor = cosine_with_warmup(self.step, steps=steps, warmup_ratio=self.optimization.warmup_ratio)
        for optimizer, lrs in zip(self.optimizers, self._base_lrs, strict=True):
            for group, lr in zip(optimizer.param_groups, lrs, strict=True):
                group["lr"] = lr * factor

    def _count_step(self, total_steps: int) -> None:
        self.step += 1
        if self.step > total_steps * (1 - self.optimization.average_last):
            self._average.update()

    def _end_epoch(self) -> dict[str, float]:
        with self._average.applied():
            figures = self.evaluate(self.objective.validate)
            self._keep_if_best(figures)
        self.model.train()
        return figures

    def _keep_if_best(self, figures: dict[str, float]) -> None:
        # One process decides: the others may read its file before or after it has written it.
        better = [self._best.is_beaten_by(figures)]
        broadcast_object_list(better)
        if better[0]:
            weights = self._whole_weights()
            if self._accelerator.is_main_process:
                self._best.save(weights, figures)

    def _whole_weights(self) -> dict[str, Any]:
        """The model's weights; with FSDP gathered, on the CPU, and in the main process only."""
        if not self._accelerator.is_fsdp2:
            return self.model.state_dict()
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(self.model, options=options)

    def _whole_model(self) -> Model:
        """The model, or with FSDP a copy of it with whole weights, in the main process."""
        if not self._accelerator.is_fsdp2:
            return self.model
        weights = self._whole_weights()
        if not self._accelerator.is_main_process:
            return self.model
        whole = with_adapters(type(self.model)(self.model.config), self.optimization.lora)
        whole.load_state_dict(weights)
        return whole

    def _save(self) -> None:
        self._state.save(self.step)
        self._saved_at = time.monotonic()
