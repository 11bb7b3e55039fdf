"""Fit a QNet to labelled exploration trees and to decision groups (QLASS, equation 11).

    qguide train-qnet --config training/configs/alfworld/train_qnet.toml

reads rows of `label`, of `groups`, or both; writes a QNet checkpoint. Held-back tasks show, before
any episode is played, whether the net ranks the actions between which an agent chooses:
`sibling_accuracy` over pairs in trees, and the figures of `choice_quality` over decision groups.
On held-back decision groups the manifest's `prior` is fitted, beside which the server chooses, and its
`licence` is measured, without which the server does not take it; without groups, siblings in held-back
trees tell the licence of Q alone. Its domain is that of the states that were trained on.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

import torch

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.manifest import Licence, Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.records import TreeRow
from qguide.training.data.left_out import left_out_of
from qguide.training.data.records import labelled_tree
from qguide.training.data.runs import is_main_process, read_rows
from qguide.training.licence.assessment import Assessment, assess
from qguide.training.licence.domain import fit_domain, salt_of
from qguide.training.licence.verdict import judged_by_the_rest
from qguide.training.optimization.accelerator import awaits_weights
from qguide.training.optimization.objective import Loss, Objective, sha256_of_trunk
from qguide.training.optimization.padded_batches import plan_lengths
from qguide.training.optimization.trainer import train
from qguide.training.q_training.examples import Packing, read_examples
from qguide.training.q_training.kept_lengths import keep_lengths, kept_lengths
from qguide.training.q_training.options import TrainQNetConfig
from qguide.training.q_training.packed_rows import PackedRows
from qguide.training.q_training.qnet_loss import VocabularyLogits, loss_of_tree, output_embeddings, require_range
from qguide.training.q_training.validation import require_packable, scored_choices, validate
from qguide.training.rollouts.models import weights_sha256


def run_train_qnet(config: TrainQNetConfig) -> Manifest:
    """Train and write the QNet checkpoint to `config.output / "checkpoint"`."""
    return train(config, QNetObjective, weights={"trunk_sha256": weights_sha256(config.trunk)})


class QNetObjective(Objective[QNet]):
    """Q of the actions in trees and decision groups; see `q_training.loss_terms` for the loss."""

    rows: PackedRows

    def __init__(self, config: TrainQNetConfig) -> None:
        self.config = config = config.model_copy(update={"trunk": model_folder(config.trunk)})
        self.title, self.keep = f"train-qnet {config.name}", config.keep
        self._packing = packing = Packing(
            load_renderer(config.trunk),
            config,
            max_tokens=config.optimization.micro_batch_tokens,
            with_features=config.head_features != "none",
            with_answers=config.models_world,
        )
        self._read, held_back = read_examples(config, seed=config.seed)
        self._held_back = packing.trees(held_back), packing.groups(held_back)

        self.rows, kept = PackedRows(), kept_lengths(config.output, self._read.identity)
        self.epochs = plan_lengths(
            lambda rng: packing.add_epoch(self.rows, self._read, rng, kept),
            config.optimization,
            seed=config.seed,
            renewed=packing.is_renamed_each_epoch,
        )
        self._require_rows()
        self.model = _build_qnet(config)
        self._logits: VocabularyLogits | None = None

    def _require_rows(self) -> None:
        config = self.config
        if not self.rows:
            raise ConfigError(
                f"nothing in {', '.join(map(str, (*config.labels, *config.groups)))} is left to "
                "train on: actions of one state have to differ in value (constant_trees, "
                "min_label_margin), and fit max_length; explore more tasks, or lower "
                "validation_fraction"
            )
        if config.head_bins:
            require_range(self.rows.label_range, config.head_range)

    def prepare(self, device: torch.device) -> None:
        """See `Objective`."""
        use_block_masks(self.model.trunk, self.model.device)
        if not awaits_weights():
            require_packable(self.model)
        use_block_masks(self.model.trunk, device)  # where FSDP moves the net later
        if self.config.models_world:
            self._logits = output_embeddings(self.config.trunk, self.model, device)
        if is_main_process():  # not before, as a job that fails until here leaves its folder free
            keep_lengths(self.config.output, self.rows, self._read.identity)
        self.rows.epochs.clear()  # a copy of what is needed from here on

    def size(self, micro_batch: Sequence[int]) -> int:
        """See `Objective`; nothing is packed for it."""
        return sum(self.rows.lengths[number] for number in micro_batch)

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        return loss_of_tree(self.model, self.rows[number], self.config, self._logits)

    def validate(self) -> dict[str, float]:
        """See `Objective`."""
        return validate(self.model, *self._held_back)

    def assess(self) -> Assessment:
        """See `Objective`."""
        trees, groups = self._held_back
        if choices := scored_choices(self.model, groups):
            return assess(choices)
        # How often siblings in trees were taken is not how often they will be drawn.
        return assess(scored_choices(self.model, trees), fits_prior=False)

    def save(self, model: QNet, figures: Mapping[str, float], assessed: Assessment) -> Manifest:
        """See `Objective`."""
        config = self.config
        manifest = config.manifest(
            kind="qnet",
            trunk=config.trunk,
            data=[*config.labels, *config.groups],
            metrics=figures,
            read_at="observation" if config.read_at == "observation" else "last_token",
            target=_target(config),
            label_range=self.rows.label_range,
            trunk_sha256=sha256_of_trunk(config.trunk),
            prior=assessed.prior,
            licence=assessed.licence and _judged_by_the_rest(assessed.licence, config),
            unjudged="" if assessed.licence else config.unjudged,
        )
        return save_checkpoint(
            config.output / "checkpoint",
            model=model,
            tokenizer=self._packing.renderer.tokenizer,
            manifest=manifest,
            domain=fit_domain(self._read.states, salt=salt_of(manifest)),
        )


def _judged_by_the_rest(licence: Licence, config: TrainQNetConfig) -> Licence:
    judges, fraction = [*config.held_back_groups, *config.held_back_labels], config.validation_fraction
    own, every = left_out_of(judges), left_out_of([*judges, *config.labels, *config.groups])
    judging = own.tasks + fraction * (every.tasks - own.tasks)
    return judged_by_the_rest(licence, every if fraction else own, judging=judging)


def _build_qnet(config: TrainQNetConfig) -> QNet:
    qnet = QNet.from_trunk(
        config.trunk,
        empty=awaits_weights(),
        head=config.head,
        head_width=config.head_width,
        head_features=config.head_features,
        head_bins=config.head_bins,
        head_range=config.head_range,
    )
    qnet.trunk.requires_grad_(not config.freeze_trunk)
    return qnet


def _target(config: TrainQNetConfig) -> str:
    targets: list[str] = []
    for folder in config.labels[:1]:
        rows = read_rows(folder, TreeRow)
        targets += [labelled_tree(row).target for row in islice(rows, 1)]
    if config.groups:
        targets.append(f"groups-{config.group_labels.scale}")
    return "+".join(targets)
