"""QNet: an LLM trunk and an MLP value head (QLASS, appendix A.2.2)."""

from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from qnet.engine.tree_masks import TreeMask, TrunkMask
from qnet.errors import CheckpointError
from qnet.models.hub import model_folder
from qnet.models.match_features import MATCH_FEATURES

PAPER_HEAD_WIDTH = 1024
MATCH_WIDTH = 128
DEFAULT_RANGE = (-0.1, 1.1)
"""Edges of the bins for labels in [0, 1]: with room, so that the mean can reach both ends."""

HeadKind = Literal["mlp", "linear"]
HeadFeatures = Literal["none", "match-1"]
"""Features beside the hidden state for the value head; another definition, another number."""


class QNetConfig(PretrainedConfig):
    """The trunk's configuration and the head's.

    Args:
        head: "mlp" is the paper's; "linear" is one layer without a bias, the head of a Hugging Face
            sequence classifier with one label.
        head_width: of the hidden layers of an "mlp".
        head_features: "match-1" for those of `match_features`; "none" is the paper.
        head_bins: 0 for a head that regresses Q; otherwise Q is the mean of a distribution over so
            many equal bins, which HL-Gauss trains by classification (Farebrother et al., 2024).
        head_range: lowest and highest edge of the bins.

    Raises:
        CheckpointError: this version does not know this head or these features, or a linear head
            is given features or bins.
    """

    model_type = "qguide-qnet"

    def __init__(
        self,
        trunk: dict[str, Any] | None = None,
        head: HeadKind = "mlp",
        head_width: int = PAPER_HEAD_WIDTH,
        head_features: HeadFeatures = "none",
        head_bins: int = 0,
        head_range: tuple[float, float] = DEFAULT_RANGE,
        **kwargs: Any,
    ) -> None:
        if head_features not in get_args(HeadFeatures):
            raise CheckpointError(
                f"head_features is {head_features!r}; this version of QGuide computes "
                f"{', '.join(get_args(HeadFeatures))}; use the version that trained the Q model"
            )
        if head not in get_args(HeadKind):
            raise CheckpointError(
                f"head is {head!r}; this version of QGuide knows {', '.join(get_args(HeadKind))}; "
                "use the version that trained the Q model"
            )
        if head == "linear" and (head_features != "none" or head_bins):
            raise CheckpointError(
                f"head is 'linear' with head_features {head_features!r} and head_bins {head_bins}; "
                "set them to 'none' and 0, or head to 'mlp'"
            )
        self.trunk = trunk or {}
        self.head = head
        self.head_width = head_width
        self.head_features = head_features
        self.head_bins = head_bins
        low, high = head_range  # JSON makes a list of it
        self.head_range = (low, high)
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
    """Linear, ReLU, Linear, ReLU, Linear to one number or to bins; the last reduction in float32.

    Match features, where there are any, go through two layers of their own first. A linear head is
    the last reduction alone, without a bias.
    """

    def __init__(
        self,
        hidden_size: int,
        width: int,
        *,
        kind: HeadKind = "mlp",
        features: HeadFeatures = "none",
        bins: int = 0,
        value_range: tuple[float, float] = DEFAULT_RANGE,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.features = features
        self.bins = bins
        self.value_range = value_range
        if kind == "linear":
            self.hidden = nn.Sequential()
            self.out = nn.Linear(hidden_size, 1, bias=False)
            return
        match_width = 0 if features == "none" else MATCH_WIDTH
        if match_width:
            self.match = nn.Sequential(
                nn.Linear(len(MATCH_FEATURES), match_width),
                nn.ReLU(),
                nn.Linear(match_width, match_width),
                nn.ReLU(),
            )
        self.hidden = nn.Sequential(
            nn.Linear(hidden_size + match_width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.out = nn.Linear(width, bins or 1)

    def forward(self, hidden_D: Tensor, features_F: Tensor | None = None) -> Tensor:
        """q of each hidden state: (…, D) and, where it reads them, features (…, F) to (…)."""
        return self.q_of(self.outputs(hidden_D, features_F))

    def outputs(self, hidden_D: Tensor, features_F: Tensor | None = None) -> Tensor:
        """The last layer's outputs in float32: (…, 1), or the logits of the bins (…, K)."""
        if self.features != "none":
            if features_F is None:
                raise ValueError(f"the value head reads {self.features}, but was given no features")
            hidden_D = torch.cat([hidden_D, self.match(features_F.to(hidden_D))], dim=-1)
        inner = self.hidden(hidden_D).float()
        bias = None if self.out.bias is None else self.out.bias.float()
        # Autocast would round Q to bfloat16, in which different candidates tie.
        with torch.autocast(inner.device.type, enabled=False):
            return nn.functional.linear(inner, self.out.weight.float(), bias)

    def q_of(self, outputs_K: Tensor) -> Tensor:
        """q (…) of what `outputs` gives: the number itself, or the mean over the bins."""
        if not self.bins:
            return outputs_K.squeeze(-1)
        edges = self.edges(outputs_K)
        with torch.autocast(outputs_K.device.type, enabled=False):
            return outputs_K.softmax(-1) @ ((edges[:-1] + edges[1:]) / 2)

    def edges(self, like: Tensor) -> Tensor:
        """(K + 1,) edges of the bins, on the device of another tensor."""
        low, high = self.value_range
        return torch.linspace(low, high, self.bins + 1, device=like.device)


class QNet(PreTrainedModel):
    """Q(s, a), read at the action's last token or after its observation, as the manifest says."""

    config_class = QNetConfig
    base_model_prefix = "trunk"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: QNetConfig) -> None:
        super().__init__(config)
        trunk_config = nested_config(config.trunk, "trunk")
        self.trunk = AutoModel.from_config(trunk_config)
        self.head = ValueHead(
            trunk_config.hidden_size,
            config.head_width,
            kind=config.head,
            features=config.head_features,
            bins=config.head_bins,
            value_range=config.head_range,
        )
        self.post_init()

    @classmethod
    def from_trunk(
        cls,
        trunk: Path,
        *,
        head: HeadKind = "mlp",
        head_width: int = PAPER_HEAD_WIDTH,
        head_features: HeadFeatures = "none",
        head_bins: int = 0,
        head_range: tuple[float, float] = DEFAULT_RANGE,
    ) -> "QNet":
        """A new head on the trunk of any Hugging Face causal LM folder."""
        loaded = AutoModel.from_pretrained(
            model_folder(trunk),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
        )
        trunk_fields = {k: v for k, v in loaded.config.to_dict().items() if k[0] != "_"}
        config = QNetConfig(
            trunk=trunk_fields,
            head=head,
            head_width=head_width,
            head_features=head_features,
            head_bins=head_bins,
            head_range=head_range,
        )
        qnet = cls(config)
        qnet.trunk = loaded
        return qnet

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | TreeMask | None = None,
        position_ids: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """q at every position: token ids (B, T) and, where the head reads them, features (B, T, F).

        Match features are those of an action, at its last token; q of other tokens means nothing.
        """
        hidden_BTD = self.hidden_states(input_ids, attention_mask, position_ids)
        q_BT: Tensor = self.head(hidden_BTD, features)
        return q_BT

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | TreeMask | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """The trunk's last hidden state at every position, (B, T, D)."""
        hidden_BTD: Tensor = self.trunk(
            input_ids=input_ids,
            attention_mask=self._mask_of_layers(attention_mask),
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state
        return hidden_BTD

    def _mask_of_layers(self, mask: Tensor | TreeMask | None) -> TrunkMask | None:
        return mask.of_layers(self.trunk.config) if isinstance(mask, TreeMask) else mask


AutoConfig.register(QNetConfig.model_type, QNetConfig)
