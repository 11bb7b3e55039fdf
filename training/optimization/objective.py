"""The objective of a training, for which the one loop (`trainer`) trains a model.

SFT, QNets, DPO and policies are trained alike but for four things: the loss of a packed batch, the
figures after each epoch, the figure that decides which epoch is kept, and what is written. An
objective is these four. Precision, processes, resumption, averages and metrics are the loop's, so
that a method of training is one class beside its options.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.manifest import Manifest, sha256_of
from qguide.training.environments.registry import task_markers_of
from qguide.training.licence.assessment import Assessment
from qguide.training.optimization.options import Criterion, TrainingConfig
from qguide.training.optimization.padded_batches import Epoch

Model = TypeVar("Model", bound=nn.Module)


def save_policy(
    config: TrainingConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    trunk: Path | None,
    data: Iterable[Path],
    metrics: Mapping[str, float],
) -> Manifest:
    """Write a policy that was trained, as the checkpoint of the run; see `TrainingConfig.manifest`."""
    markers = task_markers_of(config.environment)
    manifest = config.manifest(kind="policy", trunk=trunk, data=data, metrics=metrics, task_markers=markers)
    return save_checkpoint(config.output / "checkpoint", model=model, tokenizer=tokenizer, manifest=manifest)


def sha256_of_trunk(trunk: Path) -> str:
    """Hash of the weights of a folder; "" if they are in several files."""
    weights = trunk / "model.safetensors"
    return sha256_of(weights) if weights.is_file() else ""


@dataclass(frozen=True, slots=True)
class Loss:
    """Summed loss of a micro-batch and its total weight, from which a step's exact mean follows."""

    total: Tensor
    weight: float


class Objective(ABC, Generic[Model]):
    """The goal of one training; its methods run in all processes, but for `save`.

    Attributes:
        rows: the packed rows of all epochs.
        epochs: the training steps of each epoch, as numbers of rows by micro-batch.
        keep: the figure by which the best epoch is kept.
    """

    title: str
    model: Model
    rows: Sequence[Sized]
    epochs: Sequence[Epoch]
    keep: Criterion = "last"
    one_pass: ClassVar[bool] = False
    """`loss` makes one forward pass of a micro-batch; else one of each row."""

    def prepare(self, device: torch.device) -> None:
        """Make the model ready for its rows; with FSDP it comes to the device only later."""

    def precompute(self, device: torch.device) -> None:
        """Compute what the loss needs of models that are not trained, in the loop's precision.

        The main process is the first to come here, so it may write files that the others read.
        """

    def size(self, micro_batch: Sequence[int]) -> int:
        """Number of tokens, by which processes divide a step."""
        return sum(len(self.rows[number]) for number in micro_batch)

    def loss(self, micro_batch: Sequence[int]) -> Loss:
        """The loss of some rows, on the model's device."""
        parts = [self.row_loss(number) for number in micro_batch]
        total: Tensor = torch.stack([part.total for part in parts]).sum()
        return Loss(total, sum(part.weight for part in parts))

    @abstractmethod
    def row_loss(self, number: int) -> Loss:
        """The loss of one row."""

    def validate(self) -> dict[str, float]:
        """Figures of held-back examples, for `metrics.jsonl`, `keep` and the manifest."""
        return {}

    def assess(self) -> Assessment:
        """The manifest's sections that follow from held-back decisions, by the weights to keep."""
        return Assessment()

    @abstractmethod
    def save(self, model: Model, figures: Mapping[str, float], assessed: Assessment) -> Manifest:
        """Write the trained model, which is whole and in float32; the main process only."""
