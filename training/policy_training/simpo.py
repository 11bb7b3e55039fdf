"""Fit a policy to preference pairs of actions without a reference: step-level SimPO.

    qguide train-simpo --config my/train_simpo.toml

Meng et al., SimPO (2024), with a state and its actions in place of a prompt and its responses:

    r(s, a) = beta / |a| * log pi(a | s)                                (equation 4)
    loss = -log sigmoid(r(s, a_chosen) - r(s, a_rejected) - gamma)      (equations 5 and 6)

|a| is the number of a reply's tokens, its end-of-turn token included. The reward is the mean over
the tokens that a policy draws by, so no length is preferred, and no second model is held in memory
or served. It differs from the paper in what is compared: `pairs`, `rro` and `ipr` write pairs of
actions in one state, of everything from a step on, and of episodes; all of them count alike, and
observations have no part. It writes a policy, as `train-policy` does: an agent to serve, or to draw
the next round's candidates with.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from qguide.qnet.engine.uploads import upload
from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.manifest import Manifest
from qguide.training.licence.assessment import Assessment
from qguide.training.optimization.objective import Loss, Objective, TrainingConfig
from qguide.training.optimization.options import DpoOptimization
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.padded_batches import plan_epochs
from qguide.training.optimization.trainer import train
from qguide.training.optimization.weight_average import Criterion
from qguide.training.policy_training.examples import PairExamples, read_pair_examples
from qguide.training.policy_training.logprobs import (
    prepare_for_packing,
    reply_logprobs,
    validate_choices,
)
from qguide.training.rollouts.models import weights_sha256


class TrainSimpoConfig(PairExamples, TrainingConfig):
    """Configuration of `qguide train-simpo`, with the fields of its examples.

    Attributes:
        policy: folder of the policy to start from.
        beta: scale of the mean log-likelihood of a token.
        margin: gamma, by which the chosen reward should exceed the rejected one; the paper finds
            about half of beta best.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
    """

    policy: Path
    beta: float = Field(default=2.0, gt=0)
    margin: float = Field(default=1.0, ge=0)
    name: str = "policy"
    keep: Criterion = "last"
    optimization: DpoOptimization = DpoOptimization()


def run_train_simpo(config: TrainSimpoConfig) -> Manifest:
    """Train and write the policy to `config.output / "checkpoint"`."""
    return train(config, SimpoObjective, weights={"policy_sha256": weights_sha256(config.policy)})


class SimpoObjective(Objective[PreTrainedModel]):
    """Preference of each pair's chosen side by its tokens' mean log-likelihood."""

    rows: list[PackedReplies]

    def __init__(self, config: TrainSimpoConfig) -> None:
        self._config = config
        self.title, self.keep = f"train-simpo {config.name}", config.keep
        loaded = load_policy(model_folder(config.policy))
        self.model, self._renderer = loaded.model, loaded.renderer
        self._examples = examples = read_pair_examples(
            config,
            self._renderer,
            max_tokens=config.optimization.micro_batch_tokens,
            seed=config.seed,
        )
        self.rows, self.epochs = plan_epochs(
            lambda _: examples.training, config.optimization, seed=config.seed, renewed=False
        )

    def prepare(self, device: torch.device) -> None:
        """See `Objective`."""
        prepare_for_packing(self.model, device)

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        margins_P = self._margins(self.rows[number])
        return Loss(-logsigmoid(margins_P - self._config.margin).sum(), len(margins_P))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Figures of held-back pairs, as `train-dpo` has them, and of held-back groups."""
        self.model.eval()
        figures: dict[str, float] = {}
        examples = self._examples
        for rows, suffix in ((examples.held_back, ""), (examples.others, "_other")):
            if rows:
                margins_P = torch.cat([self._margins(row) for row in rows])
                right = (margins_P > 0).float() + 0.5 * (margins_P == 0).float()
                figures |= {
                    f"preference_accuracy{suffix}": float(right.mean()),
                    f"preference_margin{suffix}": float(margins_P.mean()),
                    f"preference_pairs{suffix}": len(margins_P),
                }
        return figures | validate_choices(self.model, examples.groups)

    def save(
        self, model: PreTrainedModel, figures: Mapping[str, float], assessed: Assessment
    ) -> Manifest:
        """See `Objective`."""
        config = self._config
        return config.save_policy(
            model,
            self._renderer.tokenizer,
            trunk=config.policy,
            data=config.pairs,
            metrics=figures,
        )

    def _margins(self, row: PackedReplies) -> Tensor:
        """(P,) reward of each pair's chosen side less that of its rejected side."""
        logprob_R = reply_logprobs(self.model, row)
        lengths_R = upload([float(len(reply)) for reply in row.replies], logprob_R.device)
        reward_R = self._config.beta * logprob_R / lengths_R
        chosen_P = upload([pair.chosen for pair in row.pairs], reward_R.device)
        rejected_P = upload([pair.rejected for pair in row.pairs], reward_R.device)
        margins_P: Tensor = reward_R[chosen_P] - reward_R[rejected_P]
        return margins_P
