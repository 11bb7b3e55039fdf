"""The one place where a job's model names become policies and scorers for many games at once."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from qnet.types import BatchPolicy, Candidate, SampleRequest, Scorer

EMBEDDED = "embedded"
EXPERT = "expert"


class Inference(BaseModel):
    """How a job runs its models; nothing here changes what they say (up to rounding).

    Attributes:
        device: "cpu", "cuda", "cuda:1" …
        dtype: of weights and activations.
        cache_bytes: for the histories kept between steps: enough for all the episodes
            played at the same time, or every step reads its history anew.
        threads: of torch; 0 leaves its own choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    cache_bytes: int = Field(default=2 * 1024**3, ge=0)
    threads: int = Field(default=0, ge=0)


def build_policy(name: str, inference: Inference) -> BatchPolicy:
    """The policy of that name.

    Args:
        name: "embedded" for the one that ships with QGuide, "expert" for ALFWorld's expert and
            its mistakes, or the folder of a checkpoint or of any Hugging Face causal LM.
        inference: how it runs.

    Raises:
        CheckpointError: the folder holds no policy.
    """
    if name == EXPERT:
        from training.environments.alfworld.expert_policy import ExpertPolicy

        return ExpertPolicy()

    import torch

    from qnet.checkpoint import load_policy
    from qnet.policies.local import LocalPolicy

    if inference.threads:
        torch.set_num_threads(inference.threads)
    dtype: torch.dtype = getattr(torch, inference.dtype)
    loaded = load_policy(model_folder(name, "policy"), dtype=dtype, device=inference.device)
    return LocalPolicy(loaded, cache_bytes=inference.cache_bytes)


class PolicyWithRollouts:
    """Deviations, drawn hot, from one policy; what is drawn at temperature 0 from another.

    A small policy proposes the mistakes that it makes; an expert plays on after each. So a tree
    costs one drawn action per branch, and its Q says what a mistake costs one who knows the way
    back, not how often the policy happens to find it.
    """

    def __init__(self, deviating: BatchPolicy, rollouts: BatchPolicy) -> None:
        self.name = deviating.name
        self._deviating = deviating
        self._rollouts = rollouts

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        hot = [request.sampling.temperature != 0 for request in requests]
        answers = {
            is_hot: iter(
                policy.sample_batch([r for r, h in zip(requests, hot, strict=True) if h == is_hot])
            )
            for is_hot, policy in ((True, self._deviating), (False, self._rollouts))
        }
        return [next(answers[is_hot]) for is_hot in hot]


def build_scorer(name: str, inference: Inference) -> Scorer:
    """The Q model of that name, behind the fast scorer.

    Args:
        name: "embedded" for the one that ships with QGuide, or a checkpoint's folder.
        inference: how it runs.

    Raises:
        CheckpointError: the folder holds no Q model.
    """
    import torch

    from qnet.checkpoint import load_qnet
    from qnet.scoring import SharedPrefixScorer

    if inference.threads:
        torch.set_num_threads(inference.threads)
    dtype: torch.dtype = getattr(torch, inference.dtype)
    loaded = load_qnet(model_folder(name, "qnet"), dtype=dtype, device=inference.device)
    return SharedPrefixScorer(loaded, cache_bytes=inference.cache_bytes)


def model_folder(name: str, kind: Literal["policy", "qnet"]) -> Path:
    """Where the model of that name lies."""
    from qnet.checkpoint import embedded_path

    return embedded_path(kind) if name == EMBEDDED else Path(name)


def weights_sha256(folder: Path) -> str:
    """One hash over a model folder's weights; "" where there are none."""
    from qnet.checkpoint import sha256_of

    hashes = [f"{path.name} {sha256_of(path)}" for path in sorted(folder.glob("*.safetensors"))]
    return sha256("\n".join(hashes).encode()).hexdigest() if hashes else ""
