"""The part of vLLM that the benchmark uses, with a tiny trunk in transformers and no real vLLM."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModel

__version__ = "scripted"
_DEFAULT_BLOCK = 128


@dataclass
class _Pooled:
    data: torch.Tensor


@dataclass
class _Output:
    outputs: _Pooled
    num_cached_tokens: int


class LLM:
    """Gives the hidden state at each prompt's last token, and knows whole blocks again."""

    def __init__(self, *, model: str, block_size: int = _DEFAULT_BLOCK, **options: Any) -> None:
        assert options["enable_prefix_caching"]
        assert options["pooler_config"].pooling_type == "LAST"
        print("vLLM prints what it likes")  # noqa: T201
        self._trunk = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        self._block = block_size
        self._known: set[tuple[int, ...]] = set()
        config = SimpleNamespace(cache_config=SimpleNamespace(block_size=block_size))
        self.llm_engine = SimpleNamespace(vllm_config=config)

    @torch.inference_mode()
    def encode(self, prompts: list[dict[str, list[int]]], **_: Any) -> list[_Output]:
        """One output for each prompt."""
        print("and when it likes")  # noqa: T201
        return [self._encode(prompt["prompt_token_ids"]) for prompt in prompts]

    def _encode(self, token_ids: list[int]) -> _Output:
        blocks = [tuple(token_ids[:n]) for n in range(self._block, len(token_ids), self._block)]
        cached = max((len(block) for block in blocks if block in self._known), default=0)
        self._known.update(blocks)
        hidden_BTD = self._trunk(torch.tensor([token_ids])).last_hidden_state
        return _Output(_Pooled(hidden_BTD[0, -1]), cached)
