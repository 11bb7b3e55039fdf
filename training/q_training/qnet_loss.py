"""Loss of a QNet on packed trees, all terms of the objective from one forward pass of the trunk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from qguide.qnet.engine.kernels import upload
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.text_model import load_causal_lm
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_trees import PackedTree
from qguide.training.q_training.loss_terms import hl_gauss_error, tree_loss, world_loss
from qguide.training.q_training.options import QNetLossOptions
from qguide.training.q_training.validation import features_of_tree, hidden_of_tree

VocabularyLogits = Callable[[Tensor], Tensor]
"""From hidden states (N, D) to the logits of the next token (N, V)."""


@dataclass
class _Output(BaseModelOutputWithPastAndCrossAttentions):
    """The part of a trunk's output that causal LMs read, mixtures of experts included."""

    router_logits: None = None


class _Given(nn.Module):
    """Stands in for a policy's trunk: its last hidden states are those that it is given."""

    def forward(self, inputs_embeds: Tensor, **_: object) -> _Output:
        """Return the embeddings as hidden states."""
        return _Output(last_hidden_state=inputs_embeds)


class _Tied(nn.Module):
    """Output layer whose weights are an input embedding's, also where FSDP has moved those."""

    def __init__(self, embeddings: nn.Embedding) -> None:
        super().__init__()
        self.embeddings = embeddings

    @property
    def weight(self) -> Tensor:
        """(V, D) the embedding's weights as they are now."""
        return self.embeddings.weight

    def forward(self, hidden_D: Tensor) -> Tensor:
        """Logits (…, V) of hidden states (…, D)."""
        return nn.functional.linear(hidden_D, self.weight)


def output_embeddings(trunk: Path, qnet: QNet, device: torch.device) -> VocabularyLogits:
    """The output layer of the policy that a QNet's trunk comes from, and its scaling of logits.

    Where the layer is the input embedding, it is the QNet's own and trained with it; otherwise it
    stays as it is.
    """
    policy = load_causal_lm(trunk)
    layer = policy.get_output_embeddings()
    if layer.weight is policy.get_input_embeddings().weight:
        layer = _Tied(qnet.trunk.get_input_embeddings())
        policy.set_output_embeddings(layer)
    else:
        layer.requires_grad_(False).to(device)
    # Some models scale or cap the logits after the layer, so all but the trunk runs.
    setattr(policy, policy.base_model_prefix, _Given())

    def logits_of(hidden_ND: Tensor) -> Tensor:
        hidden_BND = hidden_ND[None].to(layer.weight.dtype)
        logits_BNV: Tensor = policy(inputs_embeds=hidden_BND, use_cache=False).logits
        return logits_BNV[0]

    return logits_of


def loss_of_tree(
    qnet: QNet, tree: PackedTree, options: QNetLossOptions, vocabulary_logits: VocabularyLogits | None = None
) -> Loss:
    """Summed loss of a packed tree.

    Args:
        vocabulary_logits: needed for the terms of a world model.
    """
    hidden_TD = hidden_of_tree(qnet, tree)
    head = qnet.head
    outputs_TK = head.outputs(hidden_TD, features_of_tree(qnet, tree))
    error_T: Tensor | None = None
    if head.bins:
        target_T = upload(tree.target, outputs_TK.device)
        error_T = hl_gauss_error(outputs_TK, target_T, head.edges(outputs_TK))
    loss = tree_loss(head.q_of(outputs_TK), tree, options, error_T=error_T)
    if vocabulary_logits is None:
        return loss
    world = world_loss(hidden_TD, tree, options, vocabulary_logits)
    return Loss(loss.total + world, loss.weight)


def require_range(labels: tuple[float, float], head_range: tuple[float, float]) -> None:
    """Refuse labels that no distribution over the bins can have as its mean."""
    low, high = head_range
    for label in labels:
        if not low <= label <= high:
            raise ConfigError(f"a label is {label:g}, but head_range is {low:g} to {high:g}; widen it")
