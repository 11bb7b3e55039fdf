"""vLLM's configuration."""

from dataclasses import dataclass


@dataclass
class PoolerConfig:
    """Options for turning hidden states into an answer."""

    pooling_type: str
    use_activation: bool
