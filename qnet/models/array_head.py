"""The value head of a QNet on numpy arrays, for trunks that run on a server.

With it a server whose Q models all run elsewhere needs no torch. `ValueHead` is the reference.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.models.match_features import MATCH_FEATURES, HeadFeatures
from qguide.qnet.models.qnet_config import MATCH_WIDTH, QNetConfig

Array = NDArray[np.float32]


class ArrayHead:
    """The value head in float32.

    Args:
        config: of the QNet.
        weights: by the names that `ValueHead` gives them, in the shapes of `head_shapes`.
    """

    def __init__(self, config: QNetConfig, weights: Mapping[str, Array]) -> None:
        self.features: HeadFeatures = config.head_features
        self._weights = dict(weights)
        self._centers: Array | None = None
        if config.head_bins:
            edges = np.linspace(*config.head_range, config.head_bins + 1, dtype=np.float32)
            self._centers = (edges[:-1] + edges[1:]) * np.float32(0.5)

    def __call__(self, hidden_BD: Array, features_BF: Array | None = None) -> Array:
        """q (B,) of each hidden state and, where the head reads them, its features."""
        # What is not finite is one candidate's answer, no reason to warn of all.
        with np.errstate(all="ignore"):
            if self.features != "none":
                if features_BF is None:
                    raise ValueError(f"the value head reads {self.features}, but was given none")
                matched = self._layers("match", features_BF)
                hidden_BD = np.concatenate([hidden_BD, matched], axis=-1)
            inner = self._layers("hidden", hidden_BD) if self._has("hidden") else hidden_BD
            return self._q_of(self._linear("out", inner))

    def _q_of(self, outputs_BK: Array) -> Array:
        if self._centers is None:
            return outputs_BK[:, 0]
        shifted = np.exp(outputs_BK - outputs_BK.max(-1, keepdims=True))
        q_B: Array = (shifted @ self._centers) / shifted.sum(-1)
        return q_B

    def _layers(self, part: str, inputs: Array) -> Array:
        for index in (0, 2):  # the odd ones are the activations
            inputs = np.maximum(self._linear(f"{part}.{index}", inputs), 0)
        return inputs

    def _linear(self, name: str, inputs: Array) -> Array:
        outputs: Array = inputs @ self._weights[f"{name}.weight"].T
        bias = self._weights.get(f"{name}.bias")
        return outputs if bias is None else outputs + bias

    def _has(self, part: str) -> bool:
        return f"{part}.0.weight" in self._weights


def head_shapes(config: QNetConfig, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a value head's weights."""
    if config.head == "linear":
        return {"out.weight": (1, hidden_size)}
    width, matched = config.head_width, MATCH_WIDTH if config.head_features != "none" else 0
    layers = {
        "hidden.0": (width, hidden_size + matched),
        "hidden.2": (width, width),
        "out": (config.head_bins or 1, width),
    }
    if matched:
        layers |= {"match.0": (matched, len(MATCH_FEATURES)), "match.2": (matched, matched)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes
