"""QNet: an LLM trunk and an MLP value head (QLASS, appendix A.2.2)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.tree_attention import TreeMask
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.match_features import MATCH_FEATURES
from qguide.qnet.models.options import DEFAULT_RANGE, HeadFeatures, HeadKind
from qguide.qnet.models.qnet_config import MATCH_WIDTH, QNetConfig, fields_of, nested_config
from qguide.qnet.models.text_model import load_trunk, text_trunk


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
                nn.Linear(len(MATCH_FEATURES), match_width), nn.ReLU(), nn.Linear(match_width, match_width), nn.ReLU()
            )
        self.hidden = nn.Sequential(
            nn.Linear(hidden_size + match_width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, bins or 1)

    def forward(self, hidden_D: Tensor, features_F: Tensor | None = None) -> Tensor:
        """q of each hidden state: (…, D) and, where it reads them, features (…, F) to (…)."""
        return self.q_of(self.outputs(hidden_D, features_F))

    def outputs(self, hidden_D: Tensor, features_F: Tensor | None = None) -> Tensor:
        """The last layer's outputs in float32: (…, 1), or the logits of the bins (…, K)."""
        # A trunk may keep its residual stream in float32, or be held in bfloat16 under this head.
        hidden_D = hidden_D.to(self.out.weight.dtype)
        if self.features != "none":
            if features_F is None:
                raise ValueError(f"the value head reads {self.features}, but was given no features")
            features_F = upload(features_F, hidden_D.device, dtype=hidden_D.dtype)
            hidden_D = torch.cat([hidden_D, self.match(features_F)], dim=-1)
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
    def from_trunk(cls, trunk: Path, *, empty: bool = False, **head: Any) -> "QNet":
        """A new head, by fields of `QNetConfig`, on the trunk of a causal LM folder; `empty` leaves out all weights."""
        loaded = load_trunk(trunk, empty=empty)
        with torch.device("meta" if empty else "cpu"):
            qnet = cls(QNetConfig(trunk=fields_of(loaded.config), **head))
        qnet.trunk = loaded
        if empty:
            qnet.head.to_empty(device="cpu")
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
        self, input_ids: Tensor, attention_mask: Tensor | TreeMask | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """The trunk's last hidden state at every position, (B, T, D)."""
        mask = attention_mask.of_layers(self.trunk.config) if isinstance(attention_mask, TreeMask) else attention_mask
        output = self.trunk(input_ids=input_ids, attention_mask=mask, position_ids=position_ids, use_cache=False)
        hidden_BTD: Tensor = output.last_hidden_state
        return hidden_BTD


def qnet_of(directory: Path, classifier: PreTrainedModel) -> QNet:
    """The classifier's own trunk and score layer as a QNet with a linear head."""
    prefix = classifier.base_model_prefix
    trunk: Any = text_trunk(getattr(classifier, prefix))
    score: Any = getattr(classifier, "score", None)
    own = [name for name in classifier.state_dict() if not name.startswith(f"{prefix}.")]
    if not isinstance(score, nn.Linear) or set(own) - {"score.weight", "score.bias"}:
        raise CheckpointError(
            f"{directory}: {type(classifier).__name__} has {', '.join(own)} behind its trunk; a Q "
            "model has one linear layer named score, read at the last token: serve this one by "
            "its own server (QGUIDE_CLASSIFIERS)"
        )
    with torch.device("meta"):
        qnet = QNet(QNetConfig(trunk=fields_of(trunk.config), head="linear"))
    qnet.trunk = trunk
    qnet.head.out = score
    return qnet
