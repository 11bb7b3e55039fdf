"""The benchmarked model on disk, for baselines in other processes.

As in production, vLLM loads the trunk as a Hugging Face folder and returns hidden states, to which
the value head is applied here without being measured; `qguide serve` loads a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.score.baselines import numbers
from qguide.qnet.models.checkpoint import LoadedQNet, save_checkpoint
from qguide.qnet.models.manifest import Manifest

SERVED_NAME = "bench"
BLOCK = 32
"""Block size of the baselines that do not use vLLM's default."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """The model on disk, and the options with which other processes run it.

    Attributes:
        vllm_python: Python interpreter that has vLLM.
        folder: folder for weights and logs.
        longest: length of the longest sequence in tokens.
        cache_bytes: size of the cache for keys and values.
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
        """Hugging Face folder with the trunk and the tokenizer; written at its first use."""
        folder = self.folder / "trunk"
        if not folder.exists():
            self.loaded.model.trunk.save_pretrained(folder)
            self.loaded.renderer.tokenizer.save_pretrained(folder)
        return folder

    @property
    def checkpoint(self) -> Path:
        """Checkpoint folder of the whole QNet; written at its first use."""
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
        """Environment of vLLM: offline, no usage reports, and the same number of threads."""
        return {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": str(self.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }

    def q_values(self, states: Sequence[bytes]) -> list[float]:
        """Q from hidden states in little-endian float32."""
        hidden_BD = torch.stack([torch.from_numpy(np.frombuffer(s, "<f4").copy()) for s in states])
        head = self.loaded.model.head
        like = next(head.parameters())
        with torch.inference_mode():
            return numbers(head(hidden_BD.to(like)))
