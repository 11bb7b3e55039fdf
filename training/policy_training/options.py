"""Configuration of the trainings of a policy, and of an implicit Q: their examples and their losses."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from qguide.qnet.models.options import PAPER_BETA
from qguide.training.architecture import Architecture
from qguide.training.data.augmentation import Augmentation
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.data.preferences import Level
from qguide.training.optimization.options import Criterion, DpoOptimization, PolicyOptimization, TrainingConfig
from qguide.training.options import JobOptions


class SftConfig(TrainingConfig):
    """Configuration of `qguide sft`.

    Attributes:
        trajectories: run folders of `collect` (or of finished episodes).
        distinct: leave out an episode whose actions are those of an earlier one of the same task.
        reward_weighted: weight an episode's tokens by its outcome reward, which must not be
            negative (AgentEvol).
        base: a Hugging Face causal LM, folder or hub name; None trains `architecture` from scratch.
        architecture: sizes of a model that is trained from scratch.
        observation_weight: loss weight of observation tokens; the papers' is 0. A small weight
            helps a model that is trained from scratch to learn the environment's language.
        augmentation: consistent renaming of each episode, drawn anew in each epoch.
        max_length: maximum number of tokens of an episode; longer ones are left out.
    """

    trajectories: tuple[Path, ...]
    name: str = "policy"
    distinct: bool = False
    reward_weighted: bool = False
    base: Path | None = None
    architecture: Architecture = Architecture()
    observation_weight: float = Field(default=0.0, ge=0)
    augmentation: Augmentation = Augmentation()
    max_length: int = Field(default=4096, ge=32)

    @model_validator(mode="after")
    def _adapters_have_a_base(self) -> Self:
        if self.optimization.lora and self.base is None:
            raise ValueError(
                f"optimization.lora has rank {self.optimization.lora.rank}, but there is no base, "
                "and adapters beside random weights learn little; name a base, or leave lora out"
            )
        return self


class ReplyExamples(JobOptions):
    """Options for the packing of replies, and for what is held back.

    Attributes:
        held_back_groups: run folders of `groups` used for validation only, in addition to the
            held-back tasks of what is trained on.
        group_labels: how the value of a candidate is computed from what came of it.
        max_length: longest path in tokens.
        validation_fraction: share of tasks held back.
    """

    held_back_groups: tuple[Path, ...] = ()
    group_labels: GroupLabels = GroupLabels()
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)

    def held_back_of(self, tasks: Iterable[str], *, seed: int) -> list[str]:
        """The tasks that are held back, in the order in which they were drawn."""
        order = sorted(tasks)
        random.Random(seed).shuffle(order)
        return order[: round(len(order) * self.validation_fraction)]


class PairExamples(ReplyExamples):
    """Options for examples that are preference pairs.

    Attributes:
        pairs: run folders of `pairs`, `rro` or `ipr`.
        held_back_pairs: run folders of `pairs` used for validation only, in addition to the
            held-back tasks of `pairs`.
        other_pairs: run folders of pairs from another source, such as another policy, whose
            accuracy is reported separately, as out of distribution.
    """

    pairs: tuple[Path, ...] = Field(min_length=1)
    held_back_pairs: tuple[Path, ...] = ()
    other_pairs: tuple[Path, ...] = ()


class GroupExamples(ReplyExamples):
    """Options for examples that are decision groups.

    Attributes:
        groups: run folders of `groups`, drawn by the policy that is trained.
    """

    groups: tuple[Path, ...] = Field(min_length=1)


Mixture = Literal["pairs", "levels"]
"""One mean over all pairs, or the sum of each level's own mean."""


class LevelWeights(JobOptions):
    """Weights of a pair's loss by its level.

    Attributes:
        step: weight of pairs of actions.
        suffix: weight of pairs of everything from a step on (IPR's step-DPO, equation 8).
        trajectory: weight of pairs of episodes.
        sft: weight of -log pi of the chosen trajectories, which IPR adds (equation 9).

    0 leaves out a term of the mixture "levels".
    """

    step: float = Field(default=1.0, ge=0)
    suffix: float = Field(default=1.0, ge=0)
    trajectory: float = Field(default=1.0, ge=0)
    sft: float = Field(default=0.0, ge=0)


class DpoLossOptions(JobOptions):
    """Options of the loss.

    Attributes:
        beta: strength of the tie to the reference; the Q model is served with the same value.
        weights: weights of the levels.
        mixture: "pairs" is the weighted mean over all pairs; "levels" adds up the mean of each
            level, as IPR does (equation 10), so that the level with more pairs counts no more.
    """

    beta: float = Field(default=PAPER_BETA, gt=0)
    weights: LevelWeights = LevelWeights()
    mixture: Mixture = "pairs"

    @model_validator(mode="after")
    def _batches_weigh_something(self) -> Self:
        zeros = [level for level in get_args(Level) if not getattr(self.weights, level)]
        if zeros and self.mixture == "pairs":
            raise ValueError(
                f'weights.{zeros[0]} is 0, and with mixture = "pairs" a batch of such pairs has no '
                'mean; use mixture = "levels", or leave those pairs out'
            )
        return self


class TrainDpoConfig(PairExamples, DpoLossOptions, TrainingConfig):
    """Configuration of `qguide train-dpo`, with the fields of its examples and of its loss.

    Attributes:
        policy: folder of the policy to start from.
        reference: folder of the reference policy; None is `policy`.
        write_policy: also write the trained policy by itself, to `policy` beside `checkpoint`, as
            the agent of the next iteration.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
        optimization: options of the optimiser and the batches. StepQ has batches of 16 pairs; here
            batches are counted in distinct tokens.
    """

    policy: Path
    reference: Path | None = None
    name: str = "implicit-q"
    write_policy: bool = False
    keep: Criterion = "last"
    optimization: DpoOptimization = DpoOptimization()


class ReplyTraining(TrainingConfig):
    """Configuration of a policy's training on replies.

    Attributes:
        policy: folder of the policy to start from.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
    """

    policy: Path
    name: str = "policy"
    keep: Criterion = "last"


class TrainSimpoConfig(PairExamples, ReplyTraining):
    """Configuration of `qguide train-simpo`, with the fields of its examples.

    Attributes:
        beta: scale of the mean log-likelihood of a token.
        margin: gamma, by which the chosen reward should exceed the rejected one; the paper finds
            about half of beta best.
    """

    beta: float = Field(default=2.0, gt=0)
    margin: float = Field(default=1.0, ge=0)
    optimization: DpoOptimization = DpoOptimization()


Normalization = Literal["std", "none"]
"""Divide advantages by the standard deviation of their group, or not (Dr. GRPO)."""


class GroupLossOptions(JobOptions):
    """Options of the loss.

    Attributes:
        clip: epsilon, the largest change of a reply's probability that is rewarded, as a share.
        kl: beta, the strength of the tie to the reference; 0 has none.
        normalization: divide advantages by the standard deviation of their group ("std", GRPO and
            GiGPO), or not ("none", Dr. GRPO), so that costly choices count more.
    """

    clip: float = Field(default=0.2, gt=0, lt=1)
    kl: float = Field(default=0.01, ge=0)
    normalization: Normalization = "std"


class TrainPolicyConfig(GroupExamples, GroupLossOptions, ReplyTraining):
    """Configuration of `qguide train-policy`, with the fields of its examples and of its loss.

    Attributes:
        policy: folder of the policy to start from, which drew the groups.
        reference: folder of the policy to stay close to; None is `policy`.
    """

    reference: Path | None = None
    optimization: PolicyOptimization = PolicyOptimization()
