"""Configuration of a QNet: the trunk's and the value head's."""

from typing import Any, get_args

from transformers import AutoConfig, PretrainedConfig

from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.options import DEFAULT_RANGE, PAPER_HEAD_WIDTH, HeadFeatures, HeadKind

MATCH_WIDTH = 128


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


def fields_of(config: PretrainedConfig) -> dict[str, Any]:
    """The fields of one part's configuration, as a Q model's holds them."""
    return {name: value for name, value in config.to_dict().items() if name[0] != "_"}


def nested_config(fields: dict[str, Any], part: str) -> PretrainedConfig:
    """The configuration of one part of a Q model (trunk, policy or reference), by its fields in config.json."""
    others = dict(fields)
    model_type = others.pop("model_type", None)
    others.pop("dtype", None)  # of the weights it came from; whoever loads it chooses anew
    if not isinstance(model_type, str):
        raise CheckpointError(f"config.json names no {part}.model_type; train the Q model again")
    try:
        config: PretrainedConfig = AutoConfig.for_model(model_type, **others)
    except ValueError as error:
        raise CheckpointError(f"{part}.model_type is {model_type!r}, which this transformers does not know") from error
    return config


AutoConfig.register(QNetConfig.model_type, QNetConfig)
