"""vLLM's configuration."""

from dataclasses import dataclass


@dataclass
class PoolerConfig:
    """How hidden states become an answer."""

    pooling_type: str
    use_activation: bool
