"""Options of the optimizer, the batches and the hardware, which every training job has."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.models.hub import hub_name
from qguide.qnet.models.manifest import Manifest, MergedLora
from qguide.training.data.row_files import sha256_of_rows
from qguide.training.options import JobOptions

Tracker = Literal["tensorboard", "wandb"]


class Lora(JobOptions):
    """Low-rank adapters beside frozen matrices (LoRA; Hu and others, 2021).

    Attributes:
        rank: rank of the adapters, which have rank x (inputs + outputs) weights per matrix.
        alpha: factor of the adapters: their outputs are multiplied by alpha / rank.
        dropout: share of the adapters' inputs that is dropped at random during training.
        target_modules: "all-linear" for every linear layer but the output layer and the value
            head, or the names of some, such as "q_proj" and "v_proj".
    """

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class Optimization(JobOptions):
    """Options of the optimizer and the batches; the defaults are QLASS's for fine-tuning an LLM.

    A job with other defaults has a subclass: they hold for what its table leaves out, too.

    Attributes:
        lora: train adapters, and the value head if there is one, instead of all weights. They are
            merged into the weights that are written. AdamW only.
        optimizer: "muon" orthogonalises the updates of hidden matrices and leaves the rest to
            AdamW; it learns faster from scratch. FSDP takes AdamW only.
        lr: peak learning rate of AdamW.
        muon_lr: peak learning rate of Muon.
        warmup_ratio: share of the steps over which the learning rate rises from 0.
        weight_decay: decoupled decay of the weights, times the learning rate.
        max_grad_norm: norm to which gradients are clipped.
        epochs: passes over the rows.
        batch_tokens: minimum tokens per optimizer step. A step is whole micro-batches; their
            gradients are accumulated. The papers count sequences instead (64).
        micro_batch_tokens: maximum number of tokens, padding included, that go through the model
            at once, and of a packed row; a longer single sequence still goes through whole. It
            also decides which sequences share a step.
        average_last: share of the steps, at the end of the training, over which the weights are
            averaged; validation and the result use the average.
        device: "auto" trains on a GPU if there is one; "cpu" never does. `CUDA_VISIBLE_DEVICES`
            chooses among GPUs.
        processes: number of processes that divide each step's micro-batches among them, on the
            CPU. With more than one, `threads` must be 1, and each step should have at least as many
            micro-batches. Leave it at 1 for GPUs, whose processes `accelerate launch` starts.
        mixed_precision: "bf16" computes matrix products in bfloat16; weights, sums of gradients
            and the optimizer stay in float32.
        frozen_dtype: type of weights that are not trained: those beside LoRA's adapters, and a
            QNet's frozen trunk. "bfloat16" takes half the memory, and rounds the weights of a model
            that was not in bfloat16 before. What is trained stays in float32. Not with FSDP.
        gradient_checkpointing: keep each layer's input only and compute the layer again in the
            backward pass; takes about a third more time and far less memory.
        save_every_s: seconds between saves, from which a killed training continues.
        trackers: send the metrics to these as well; `metrics.jsonl` is always written.
    """

    lora: Lora | None = None
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
    device: Literal["auto", "cpu"] = "auto"
    threads: int = Field(default=0, ge=0, description="0 leaves torch's own choice")
    processes: int = Field(default=1, ge=1)
    mixed_precision: Literal["no", "bf16"] = "no"
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    trackers: tuple[Tracker, ...] = ()
    save_every_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _adapters_are_trained_by_adamw(self) -> Self:
        # Muon's learning rate is one for whole matrices, not for the factors of an update.
        if self.lora and self.optimizer == "muon":
            raise ValueError(
                f"lora has rank {self.lora.rank} and optimizer is 'muon', which updates whole "
                "matrices; set optimizer to 'adamw', or leave lora out"
            )
        return self


class QNetOptimization(Optimization):
    """Options of the optimizer and the batches; the defaults are QLASS's for a QNet."""

    epochs: int = Field(default=2, ge=1)


class PolicyOptimization(Optimization):
    """Options of the optimizer and the batches; the learning rate is GiGPO's.

    Groups are drawn before the training, so more epochs move the policy further from the one that
    drew them.
    """

    lr: float = Field(default=1e-6, gt=0)
    epochs: int = Field(default=1, ge=1)


class DpoOptimization(Optimization):
    """Options of the optimizer and the batches; the defaults are StepQ's."""

    warmup_ratio: float = Field(default=0.1, ge=0, le=1)
    epochs: int = Field(default=1, ge=1)


LossOn = Literal["all", "action", "last"]
ReadAt = Literal["action", "observation"]
"""Q is read at the action's last token, or after the observation that followed it."""

Criterion = Literal["last", "spearman", "regret_steps"]


class TrainingConfig(JobOptions):
    """Configuration that all trainings share.

    Attributes:
        output: the run folder to write or resume.
        name: of the model that is written.
        environment: name of the environment that the model is for.
        optimization: options of the optimizer and the batches.
        seed: of the weights and of the order of batches.
    """

    output: Path
    name: str
    environment: str = ""
    optimization: Optimization = Optimization()
    seed: int = 0

    def manifest(
        self, *, trunk: Path | None, data: Iterable[Path], metrics: Mapping[str, float], **sections: Any
    ) -> Manifest:
        """The manifest of the model that this training writes."""
        lora = self.optimization.lora
        return Manifest(
            name=self.name,
            environment=self.environment,
            trunk=hub_name(trunk) if trunk else "",
            data_sha256=sha256_of_rows(data),
            lora=lora and MergedLora(rank=lora.rank, alpha=lora.alpha),
            metrics=dict(metrics),
            **sections,
        )
