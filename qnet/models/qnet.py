"""QNet: an LLM trunk and an MLP value head (QLASS, appendix A.2.2)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from qnet.errors import CheckpointError

PAPER_HEAD_WIDTH = 1024


class QNetConfig(PretrainedConfig):
    """The trunk's configuration and the head's width."""

    model_type = "qguide-qnet"

    def __init__(
        self,
        trunk: dict[str, Any] | None = None,
        head_width: int = PAPER_HEAD_WIDTH,
        **kwargs: Any,
    ) -> None:
        self.trunk = trunk or {}
        self.head_width = head_width
        super().__init__(**kwargs)


def nested_config(fields: dict[str, Any], part: str) -> PretrainedConfig:
    """The configuration object of one part of a Q model.

    Args:
        fields: what config.json says of it.
        part: where it says so: trunk, policy or reference.

    Raises:
        CheckpointError: its model type is missing or unknown.
    """
    others = dict(fields)
    model_type = others.pop("model_type", None)
    others.pop("dtype", None)  # of the weights it came from; whoever loads it chooses anew
    if not isinstance(model_type, str):
        raise CheckpointError(f"config.json names no {part}.model_type; train the Q model again")
    try:
        config: PretrainedConfig = AutoConfig.for_model(model_type, **others)
    except ValueError as error:
        raise CheckpointError(
            f"{part}.model_type is {model_type!r}, which this transformers does not know"
        ) from error
    return config


class ValueHead(nn.Module):
    """Linear, ReLU, Linear, ReLU, Linear to one number; the last reduction in float32."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(hidden_size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, 1)

    def forward(self, hidden_D: Tensor) -> Tensor:
        """q of each hidden state: (…, D) to (…)."""
        features = self.hidden(hidden_D).float()
        q = nn.functional.linear(features, self.out.weight.float(), self.out.bias.float())
        return q.squeeze(-1)


class QNet(PreTrainedModel):
    """Q(s, a), read at the last token of the action."""

    config_class = QNetConfig
    base_model_prefix = "trunk"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: QNetConfig) -> None:
        super().__init__(config)
        trunk_config = nested_config(config.trunk, "trunk")
        self.trunk = AutoModel.from_config(trunk_config)
        self.head = ValueHead(trunk_config.hidden_size, config.head_width)
        self.post_init()

    @classmethod
    def from_trunk(cls, trunk: Path, *, head_width: int = PAPER_HEAD_WIDTH) -> "QNet":
        """A new head on the trunk of any Hugging Face causal LM folder."""
        loaded = AutoModel.from_pretrained(
            trunk, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
        trunk_fields = {k: v for k, v in loaded.config.to_dict().items() if k[0] != "_"}
        qnet = cls(QNetConfig(trunk=trunk_fields, head_width=head_width))
        qnet.trunk = loaded
        return qnet

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """q at every position: token ids (B, T) to float32 (B, T)."""
        hidden_BTD = self.trunk(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        q_BT: Tensor = self.head(hidden_BTD)
        return q_BT


AutoConfig.register(QNetConfig.model_type, QNetConfig)
