"""Policies and Q models that run in this process: of the server's modules, the one with torch."""

from pathlib import Path

import torch

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.local_policy import LocalPolicy
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import LoadedPolicy, load_policy, load_q_model
from qguide.qnet.scoring.build import build_serving_scorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.server.q_models.schemas import Source
from qguide.server.q_models.threaded import ScorerSource
from qguide.server.settings.settings import Settings


def build_local_policy(settings: Settings, folder: Path, thread: DeviceThread) -> tuple[LocalPolicy, LoadedPolicy]:
    """The policy of a folder on the device thread, and the checkpoint that it is of."""
    loaded = load_policy(folder, dtype=_prepared(settings), device=settings.device)
    policy = LocalPolicy(
        loaded, thread=thread, cache_bytes=settings.most_cache_bytes, tokens_per_forward=settings.tokens_per_forward
    )
    return policy, loaded


def build_local_source(settings: Settings, folder: Path, source: Source) -> ScorerSource:
    """Source of a Q model with its weights in this process."""
    loaded = load_q_model(folder, dtype=_prepared(settings))

    def build() -> CachingScorer:
        torch.nn.Module.to(loaded.model, settings.device)
        return build_serving_scorer(
            loaded,
            cache_bytes=settings.most_cache_bytes,
            tokens_per_forward=settings.tokens_per_forward,
            full_sequences=settings.full_sequences,
        )

    return ScorerSource(build, source, loaded.manifest, precision=settings.dtype, renderer=loaded.renderer)


def check_device(name: str) -> None:
    """Refuse a device that torch cannot use, before weights are read for it."""
    given, otherwise = f"QGUIDE_DEVICE is {name!r}, but", "or set QGUIDE_DEVICE=cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{given} torch knows no such device; set cpu, cuda or cuda:1") from error
    if device.type != "cuda":
        return
    if not torch.backends.cuda.is_built():
        raise ConfigError(
            f"{given} torch {torch.__version__} is built without CUDA; install torch's build for CUDA, {otherwise}"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise ConfigError(f"{given} torch finds {count} CUDA devices; see what nvidia-smi lists, {otherwise}")


def _prepared(settings: Settings) -> torch.dtype:
    check_device(settings.device)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype
