"""Configuration of the training of a QNet: its examples and its loss."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.models.options import DEFAULT_RANGE, PAPER_HEAD_WIDTH, HeadFeatures, HeadKind
from qguide.training.data.augmentation import Augmentation
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.optimization.options import Criterion, LossOn, QNetOptimization, ReadAt, TrainingConfig
from qguide.training.options import JobOptions


class Examples(JobOptions):
    """Options for the examples and their packing.

    Attributes:
        labels: run folders of `label`.
        groups: run folders of `groups`.
        held_back_labels: run folders of `label` used for validation only, in addition to the
            held-back tasks of `labels` and `groups`.
        held_back_groups: likewise of `groups`.
        group_labels: how a candidate's label is computed from its continuations.
        read_at: position at which Q is read: the last token of the "action", as in the paper, or
            after the "observation" that followed it. The latter is the value of the state that the
            action led to, for agents that may try actions before they choose.
        loss_on: token positions of an action that carry its label; `all` is the paper's.
        min_label_margin: siblings whose labels differ by less do not form a pair.
        constant_trees: also train on trees whose labels are all equal, as the paper does. Without
            them (ours), the many zeros of a policy that mostly fails do not outweigh the contrasts.
        unbranched_suffixes: also train on the actions after a path's last branching, as the paper
            does. They have no siblings; without them (ours), the same training time covers more
            actions that do.
        max_length: longest path in tokens.
        validation_fraction: share of tasks held back.
        augmentation: consistent renaming of trees, drawn anew in each epoch; decision groups are
            not renamed.
    """

    labels: tuple[Path, ...] = ()
    groups: tuple[Path, ...] = ()
    held_back_labels: tuple[Path, ...] = ()
    held_back_groups: tuple[Path, ...] = ()
    group_labels: GroupLabels = GroupLabels()
    read_at: ReadAt = "action"
    loss_on: LossOn = "all"
    min_label_margin: float = Field(default=0.02, gt=0)
    constant_trees: bool = True
    unbranched_suffixes: bool = True
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    augmentation: Augmentation = Augmentation()

    @property
    def unjudged(self) -> str:
        """Reason why held-back examples did not judge what was trained on the others, and what would."""
        if self.validation_fraction or self.held_back_labels or self.held_back_groups:
            return (
                "no state of a held-back task has two actions whose outcomes are known; hold back more with "
                f"validation_fraction ({self.validation_fraction:g}), held_back_labels or held_back_groups"
            )
        return (
            "no task was held back; hold back some with validation_fraction (0), or name others in held_back_labels "
            "or held_back_groups"
        )


RankingLoss = Literal["order", "root", "regret"]


class QNetLossOptions(JobOptions):
    """Options of the loss.

    Attributes:
        ranking_weight: weight of softplus(-(Q(s, a) - Q(s, a')) / ranking_scale), summed over
            sibling pairs with labels q(a) > q(a'). It is ours; 0 gives the paper's loss.
        ranking_scale: difference in Q at which a pair counts as well separated.
        ranking: weight of a pair, ((q(a) - q(a')) / ranking_scale) to the power of 0 ("order": all
            pairs count alike, so Q learns which action is better more often), 1 ("regret": a pair
            counts by its difference, so Q learns which is better on average) or 1/2 ("root").
        progress_weight: weight of the squared error of Q(s_t, a_t) - Q(s_t-1, a_t-1) against the
            same difference of the labels, in trees: AgentPRM's loss on progress beside that on
            promise. 0 leaves it out.
        observation_weight: weight of -log p for each token of the observation after every action
            (0.05 is a start). It is ours; 0 gives the paper's loss. A labelled Q has weight 1.
        outcome_weight: weight of -log p for the observation's first token, predicted at the
            action's last token, where Q is read (0.5 is a start). It is ours; 0 gives the paper's
            loss.
    """

    ranking_weight: float = Field(default=0.0, ge=0)
    ranking_scale: float = Field(default=0.1, gt=0)
    ranking: RankingLoss = "order"
    # Not written while it is 0, so that trainings from before it can be resumed.
    progress_weight: float = Field(default=0.0, ge=0, exclude_if=lambda weight: weight == 0)
    observation_weight: float = Field(default=0.0, ge=0)
    outcome_weight: float = Field(default=0.0, ge=0)

    @property
    def models_world(self) -> bool:
        """True if the model also learns to predict observations."""
        return self.observation_weight > 0 or self.outcome_weight > 0


class TrainQNetConfig(Examples, QNetLossOptions, TrainingConfig):
    """Configuration of `qguide train-qnet`, with the fields of its examples and of its loss.

    Attributes:
        trunk: the SFT policy's folder.
        freeze_trunk: train the value head alone, and leave the trunk as it is.
        head: "mlp" is the paper's value head. "linear" is one layer, so that `qguide export-model`
            can write the Q model as a Hugging Face sequence classifier with one label.
        head_width: width of the hidden layers of an "mlp".
        head_features: "match-1" lets the value head read where a candidate's tokens occurred
            before (`qguide.qnet.models.match_features`); "none" is the paper's head.
        head_bins: 0 regresses Q, as in the paper. Otherwise Q is the mean of a distribution over
            so many bins, trained by classification (HL-Gauss; 51 is a start).
        head_range: lowest and highest edge of the bins.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
    """

    trunk: Path
    name: str = "qnet"
    freeze_trunk: bool = False
    head: HeadKind = "mlp"
    head_width: int = Field(default=PAPER_HEAD_WIDTH, ge=1)
    head_features: HeadFeatures = "none"
    head_bins: int = Field(default=0, ge=0)
    head_range: tuple[float, float] = DEFAULT_RANGE
    keep: Criterion = "last"
    optimization: QNetOptimization = QNetOptimization()

    @model_validator(mode="after")
    def _train_qnet_fields_agree(self) -> Self:
        for name, default in (("head_features", "none"), ("read_at", "action")):
            if getattr(self, name) != default and self.loss_on != "last":
                raise ValueError(
                    f"loss_on is {self.loss_on!r}, but with {name} = {getattr(self, name)!r} only "
                    "one token of an action has the label; set loss_on to 'last'"
                )
        if self.optimization.lora and self.freeze_trunk:
            raise ValueError(
                f"optimization.lora has rank {self.optimization.lora.rank}, which trains the trunk "
                "by adapters, but freeze_trunk is true; leave one of them out"
            )
        low, high = self.head_range
        if self.head_bins == 1 or not low < high:
            raise ValueError(
                f"head_bins is {self.head_bins} and head_range {low:g} to {high:g}; set head_bins "
                "to 0, or to 2 or more with a range whose first edge is the lower one"
            )
        if self.head == "linear" and (self.head_features != "none" or self.head_bins):
            raise ValueError(
                f"head is 'linear', but head_features is {self.head_features!r} and head_bins "
                f"{self.head_bins}; set them to 'none' and 0, or head to 'mlp'"
            )
        if self.models_world and self.freeze_trunk:
            raise ValueError(
                f"observation_weight is {self.observation_weight} and outcome_weight "
                f"{self.outcome_weight}, which train the trunk, but freeze_trunk is true; set both "
                "to 0, or freeze_trunk to false"
            )
        if self.outcome_weight and self.read_at == "observation":
            raise ValueError(
                f"outcome_weight is {self.outcome_weight}, which predicts the observation where Q "
                "is read, but read_at is 'observation', which is after it; set outcome_weight to 0"
            )
        return self
