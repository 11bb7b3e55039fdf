"""Scorers of Q models whose trunk runs on a vLLM server."""

from pathlib import Path

from qnet.errors import ConfigError
from qnet.models.trunk_export import load_head
from qnet.scoring.vllm import VllmScorer
from qnet.scoring.vllm_client import VllmServer
from server.q_models.aliases import plain_name
from server.q_models.registry import ScorerSource
from server.settings.settings import SCRIPTED, Settings, VllmTrunk


def check_trunks(settings: Settings) -> None:
    """Check that each vLLM trunk belongs to a Q model with a checkpoint.

    Raises:
        ConfigError: `vllm_trunks` names an unknown Q model, or a scripted one.
    """
    for name in settings.vllm_trunks:
        named = {q: s for q, s in settings.q_models.items() if name in (q, plain_name(q))}
        if not named or SCRIPTED in named.values():
            raise ConfigError(
                f"QGUIDE_VLLM_TRUNKS names {name!r}, which is "
                f"{'a scripted Q model' if named else 'not a Q model'}; name an entry of "
                "QGUIDE_Q_MODELS that has a checkpoint"
            )


def trunk_of(settings: Settings, name: str) -> VllmTrunk | None:
    """The vLLM server for the trunk of `name` or `name@version`; None if it runs locally."""
    trunks = settings.vllm_trunks
    return trunks.get(name) or trunks.get(plain_name(name))


def build_vllm_scorer_source(settings: Settings, folder: Path, trunk: VllmTrunk) -> ScorerSource:
    """Source of a Q model with head and tokenizer from a checkpoint and its trunk at a URL.

    Every scorer has its own client, because a client must be used from one thread only.

    Raises:
        CheckpointError: the checkpoint does not match its manifest, or has no value head.
    """
    loaded = load_head(folder)

    def build() -> VllmScorer:
        server = VllmServer(
            str(trunk.url),
            model=loaded.trunk_name,
            hidden_size=loaded.trunk.hidden_size,
            api_key=trunk.api_key.get_secret_value() if trunk.api_key else None,
            timeout_s=settings.timeout_s,
        )
        return VllmScorer(loaded, server, max_tokens=trunk.max_tokens)

    return ScorerSource(build, "vllm", loaded.manifest, own_thread=True, precision="vllm")
