"""The implicit Q of step-level DPO: two language models and nothing trained on top of them.

    Q(s, a) = beta * (log pi_theta(a | s) - log pi_ref(a | s))          (StepQ, equation 9)

The logarithms are sums over the action's tokens, its end-of-turn token included. The policy and
its reference share one tokenizer.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.options import PAPER_BETA
from qguide.qnet.models.qnet_config import fields_of, nested_config
from qguide.qnet.models.text_model import load_causal_lm


class ImplicitQConfig(PretrainedConfig):
    """The configurations of the policy and its reference, and DPO's beta."""

    model_type = "qguide-implicit-q"

    def __init__(
        self,
        policy: dict[str, Any] | None = None,
        reference: dict[str, Any] | None = None,
        beta: float = PAPER_BETA,
        **kwargs: Any,
    ) -> None:
        self.policy = policy or {}
        self.reference = reference or {}
        self.beta = beta
        super().__init__(**kwargs)


class ImplicitQ(PreTrainedModel):
    """A policy that step-level DPO trained, and the reference it started from."""

    config_class = ImplicitQConfig
    base_model_prefix = "policy"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: ImplicitQConfig) -> None:
        super().__init__(config)
        policy = nested_config(config.policy, "policy")
        reference = nested_config(config.reference, "reference")
        if policy.vocab_size != reference.vocab_size:
            raise CheckpointError(
                f"the policy knows {policy.vocab_size:,} tokens and its reference "
                f"{reference.vocab_size:,}; they have to share one tokenizer"
            )
        self.policy = AutoModelForCausalLM.from_config(policy)
        self.reference = AutoModelForCausalLM.from_config(reference)
        self.post_init()

    @classmethod
    def from_policies(cls, policy: Path, reference: Path, *, beta: float = PAPER_BETA) -> "ImplicitQ":
        """An implicit Q of two Hugging Face causal LM folders."""
        models = [load_causal_lm(folder) for folder in (policy, reference)]
        fields = [fields_of(model.config) for model in models]
        implicit = cls(ImplicitQConfig(policy=fields[0], reference=fields[1], beta=beta))
        implicit.policy, implicit.reference = models
        return implicit

    def forward(self, input_ids: Tensor) -> Tensor:
        """Each token's part of Q: ids (B, T) to float32 (B, T - 1), from the second on."""
        policy_BT, reference_BT = (
            token_logprobs(model(input_ids=input_ids, use_cache=False).logits[:, :-1], input_ids[:, 1:])
            for model in (self.policy, self.reference)
        )
        added_BT: Tensor = self.config.beta * (policy_BT - reference_BT)
        return added_BT


def token_logprobs(logits_V: Tensor, token_ids: Tensor) -> Tensor:
    """log pi of the tokens under their logits, in float32: (…, V) and (…) to (…)."""
    logits_V = logits_V.float()
    chosen = logits_V.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits_V, dim=-1)


AutoConfig.register(ImplicitQConfig.model_type, ImplicitQConfig)
