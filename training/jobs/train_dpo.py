"""Fit a policy to preference pairs, and write it with its reference as an implicit Q (StepQ).

    qguide train-dpo --config training/configs/alfworld/train_dpo.toml

reads rows of `pairs`, `rro` or `ipr`; writes an implicit-q checkpoint, which the server, `evaluate`
and `choice-regret` accept instead of a QNet. Pairs of actions give step-level DPO (equation 8),
pairs of episodes trajectory-level DPO (equation 7). Pairs of `ipr` with `mixture = "levels"` and
`weights.sft` give the loss of IPR (its equation 10).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.implicit_q import ImplicitQ
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.manifest import Manifest
from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality
from qguide.training.data.left_out import left_out_of
from qguide.training.environments.registry import task_markers_of
from qguide.training.licence.assessment import Assessment, assess
from qguide.training.licence.domain import fit_domain, salt_of
from qguide.training.licence.verdict import judged_by_the_rest
from qguide.training.optimization.adapters import hold_frozen
from qguide.training.optimization.objective import Loss, Objective, sha256_of_trunk
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.padded_batches import plan_epochs
from qguide.training.optimization.trainer import train
from qguide.training.policy_training.dpo_loss import PairWeights, implicit_q, pairs_loss, q_of_pairs
from qguide.training.policy_training.examples import read_pair_examples, states_of_pairs
from qguide.training.policy_training.logprobs import (
    kept_logprobs,
    preference_figures,
    prepare_for_packing,
    reply_logprobs,
)
from qguide.training.policy_training.options import TrainDpoConfig
from qguide.training.rollouts.models import weights_sha256

Referenced = Sequence[tuple[PackedReplies, Tensor]]
"""Packed rows, each with log pi of its replies under the reference."""


@torch.no_grad()
def validate(
    policy: PreTrainedModel, pairs: Referenced, other_pairs: Referenced, groups: Referenced, *, beta: float
) -> dict[str, float]:
    """Figures of the held-back examples, if there are any.

    Args:
        pairs: held-back pairs of the same source, that is, in distribution.
        other_pairs: pairs of another source, such as another policy, that is, out of distribution.

    Returns:
        `preference_accuracy`: share of pairs whose chosen side has the higher Q (a tie counts
        half). `preference_margin`: mean difference of their Q. Both also with `_other`, for
        `other_pairs`. And the figures of `choice_quality`.
    """
    policy.eval()
    figures: dict[str, float] = {}
    for rows, suffix in ((pairs, ""), (other_pairs, "_other")):
        margins = [m for tree, r in rows for m in _margins(policy, tree, r, beta=beta)]
        figures |= preference_figures(margins, suffix)
    if assessed := scored_choices(policy, groups, beta=beta):
        figures |= choice_quality(assessed)
    return figures


@torch.no_grad()
def scored_choices(policy: PreTrainedModel, groups: Referenced, *, beta: float) -> list[ScoredChoice]:
    """The decisions of packed groups with the implicit Q."""
    policy.eval()
    choices = list[ScoredChoice]()
    for tree, reference_R in groups:
        q_values = implicit_q(reply_logprobs(policy, tree).cpu(), reference_R, beta=beta).tolist()
        choices += [group.scored(q_values) for group in tree.groups]
    return choices


def _margins(policy: PreTrainedModel, tree: PackedReplies, reference_R: Tensor, *, beta: float) -> list[float]:
    chosen_P, rejected_P = q_of_pairs(reply_logprobs(policy, tree), reference_R, tree, beta=beta)
    margins: list[float] = (chosen_P - rejected_P).tolist()
    return margins


def run_train_dpo(config: TrainDpoConfig) -> Manifest:
    """Train and write the implicit-q checkpoint to `config.output / "checkpoint"`."""
    weights = {
        "policy_sha256": weights_sha256(config.policy),
        "reference_sha256": weights_sha256(config.reference or config.policy),
    }
    return train(config, DpoObjective, weights=weights)


class DpoObjective(Objective[PreTrainedModel]):
    """Preference of each pair's chosen side; see `policy_training.dpo_loss` for the loss."""

    rows: list[PackedReplies]

    def __init__(self, config: TrainDpoConfig) -> None:
        local = {"policy": model_folder(config.policy)}
        if config.reference:
            local["reference"] = model_folder(config.reference)
        self._config = config = config.model_copy(update=local)
        self.title, self.keep = f"train-dpo {config.name}", config.keep
        self._renderer = load_renderer(config.policy)
        self._examples = examples = read_pair_examples(
            config, self._renderer, max_tokens=config.optimization.micro_batch_tokens, seed=config.seed
        )
        self.rows, self.epochs = plan_epochs(
            lambda _: examples.training, config.optimization, seed=config.seed, renewed=False
        )
        self._weights = PairWeights.of(config, self.rows)
        self._both = ImplicitQ.from_policies(config.policy, config.reference or config.policy, beta=config.beta)
        self._both.reference.requires_grad_(False)
        self.model = self._both.policy

    def prepare(self, device: torch.device) -> None:
        """See `Objective`."""
        # Rounded like the policy beside its adapters.
        hold_frozen(self._both.reference, self._config.optimization)
        use_block_masks(self._both.reference, device)
        prepare_for_packing(self.model, device)

    def precompute(self, device: torch.device) -> None:
        """Log pi of all replies under the reference, as precise as the policy's, beside it."""
        parts = self._examples.parts
        rows = [row for part in parts for row in part]
        reference = self._both.reference.to(device)
        logprobs = iter(kept_logprobs(reference, rows, self._config.output / "reference_logprobs.pt"))
        self._training, *self._held_back = ([(row, next(logprobs)) for row in part] for part in parts)
        reference.to("cpu")

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        row, reference_R = self._training[number]
        policy_R = reply_logprobs(self.model, row)
        return pairs_loss(policy_R, reference_R, row, weights=self._weights, beta=self._config.beta)

    def validate(self) -> dict[str, float]:
        """See `Objective`."""
        return validate(self.model, *self._held_back, beta=self._config.beta)

    def assess(self) -> Assessment:
        """See `Objective`."""
        groups = self._held_back[-1]
        return assess(scored_choices(self.model, groups, beta=self._config.beta))

    def save(self, model: PreTrainedModel, figures: Mapping[str, float], assessed: Assessment) -> Manifest:
        """Write the implicit Q, and the policy by itself where that is wanted."""
        config, tokenizer = self._config, self._renderer.tokenizer
        self._both.policy = model
        self._both.reference.float()
        manifest = config.manifest(
            kind="implicit-q",
            trunk=config.policy,
            data=config.pairs,
            metrics=figures,
            task_markers=task_markers_of(config.environment),
            read_at="action_tokens",
            target="dpo",
            trunk_sha256=sha256_of_trunk(config.policy),
            prior=assessed.prior,
            licence=assessed.licence and judged_by_the_rest(assessed.licence, left_out_of(config.held_back_groups)),
            unjudged="" if assessed.licence else "no decision was held back; name groups in held_back_groups",
        )
        if config.write_policy:
            own = {"kind": "policy", "read_at": "", "target": "", "prior": None, "licence": None, "unjudged": ""}
            save_checkpoint(
                config.output / "policy", model=model, tokenizer=tokenizer, manifest=manifest.model_copy(update=own)
            )
        return save_checkpoint(
            config.output / "checkpoint",
            model=self._both,
            tokenizer=tokenizer,
            manifest=manifest,
            domain=fit_domain(states_of_pairs(config), salt=salt_of(manifest)),
        )
