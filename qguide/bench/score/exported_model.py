"""The same model for other processes: its weights on disk, written once for each kind of process.

As a user would do it: vLLM gets the trunk as a Hugging Face folder and gives hidden states back, to
which the value head is applied here, outside what is measured; `qguide serve` gets a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from qguide.bench.score.baselines import numbers
from qnet.models.checkpoint import LoadedQNet, Manifest, save_checkpoint

SERVED_NAME = "bench"
BLOCK = 32
"""Tokens of vLLM's blocks where they are not its default."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where and how other processes run the model.

    Attributes:
        vllm_python: an interpreter that has vLLM.
        folder: for weights and logs.
        longest: tokens of the longest sequence.
        cache_bytes: for keys and values.
    """

    loaded: LoadedQNet
    folder: Path
    vllm_python: str
    dtype: str
    device: str
    threads: int
    longest: int
    cache_bytes: int

    @property
    def trunk(self) -> Path:
        """The trunk and the tokenizer as a Hugging Face folder."""
        folder = self.folder / "trunk"
        if not folder.exists():
            self.loaded.model.trunk.save_pretrained(folder)
            self.loaded.renderer.tokenizer.save_pretrained(folder)
        return folder

    @property
    def checkpoint(self) -> Path:
        """The whole QNet as the server reads it."""
        folder = self.folder / "qnet"
        if not folder.exists():
            save_checkpoint(
                folder,
                model=self.loaded.model,
                tokenizer=self.loaded.renderer.tokenizer,
                manifest=Manifest(kind="qnet", name=SERVED_NAME, read_at="last_token"),
            )
        return folder

    @property
    def vllm_environment(self) -> dict[str, str]:
        """No hub, no reports, and as many threads as everyone else."""
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": str(self.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }

    def q_values(self, states: Sequence[bytes]) -> list[float]:
        """Q from hidden states, little-endian float32."""
        hidden_BD = torch.stack([torch.from_numpy(np.frombuffer(s, "<f4").copy()) for s in states])
        head = self.loaded.model.head
        like = next(head.parameters())
        with torch.inference_mode():
            return numbers(head(hidden_BD.to(like)))
