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

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from qguide.qnet.engine.kernels import upload
from qguide.qnet.models.manifest import Manifest
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.trainer import train
from qguide.training.policy_training.examples import read_pair_examples
from qguide.training.policy_training.logprobs import (
    ReplyObjective,
    preference_figures,
    reply_logprobs,
    validate_choices,
)
from qguide.training.policy_training.options import TrainSimpoConfig
from qguide.training.rollouts.models import weights_sha256


def run_train_simpo(config: TrainSimpoConfig) -> Manifest:
    """Train and write the policy to `config.output / "checkpoint"`."""
    return train(config, SimpoObjective, weights={"policy_sha256": weights_sha256(config.policy)})


class SimpoObjective(ReplyObjective):
    """Preference of each pair's chosen side by its tokens' mean log-likelihood."""

    def __init__(self, config: TrainSimpoConfig) -> None:
        super().__init__(config, title=f"train-simpo {config.name}", data=config.pairs)
        self._loss = config
        self._examples = read_pair_examples(config, self.renderer, **self.limits)
        self.plan(self._examples.training)

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        margins_P = self._margins(self.rows[number])
        return Loss(-logsigmoid(margins_P - self._loss.margin).sum(), len(margins_P))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Figures of held-back pairs, as `train-dpo` has them, and of held-back groups."""
        self.model.eval()
        figures: dict[str, float] = {}
        examples = self._examples
        for rows, suffix in ((examples.held_back, ""), (examples.others, "_other")):
            figures |= preference_figures([m for row in rows for m in self._margins(row).tolist()], suffix)
        return figures | validate_choices(self.model, examples.groups)

    def _margins(self, row: PackedReplies) -> Tensor:
        """(P,) reward of each pair's chosen side less that of its rejected side."""
        logprob_R = reply_logprobs(self.model, row)
        lengths_R = upload([float(len(reply)) for reply in row.replies], logprob_R.device)
        reward_R = self._loss.beta * logprob_R / lengths_R
        chosen_P = upload([pair.chosen for pair in row.pairs], reward_R.device)
        rejected_P = upload([pair.rejected for pair in row.pairs], reward_R.device)
        margins_P: Tensor = reward_R[chosen_P] - reward_R[rejected_P]
        return margins_P
