"""Q models whose trunk runs on a vLLM server."""

from pathlib import Path

from qnet.errors import ConfigError
from qnet.models.trunk_export import load_head
from qnet.scoring.vllm import VllmScorer
from qnet.scoring.vllm_client import VllmServer
from server.q_models.aliases import plain_name
from server.q_models.registry import ScorerSource
from server.settings.settings import SCRIPTED, Settings, VllmTrunk


def check_trunks(settings: Settings) -> None:
    """Refuse a trunk of nothing.

    Raises:
        ConfigError: `vllm_trunks` names no Q model, or a scripted one.
    """
    for name in settings.vllm_trunks:
        named = {q: s for q, s in settings.q_models.items() if name in (q, plain_name(q))}
        if not named or SCRIPTED in named.values():
            raise ConfigError(
                f"vllm_trunks names {name!r}, which is {SCRIPTED if named else 'no Q model'}; name "
                "one of q_models that is a checkpoint"
            )


def trunk_of(settings: Settings, name: str) -> VllmTrunk | None:
    """The server of the trunk of `name` or `name@version`; None: this process."""
    trunks = settings.vllm_trunks
    return trunks.get(name) or trunks.get(plain_name(name))


def build_remote_origin(settings: Settings, folder: Path, trunk: VllmTrunk) -> ScorerSource:
    """Head and tokenizer from a checkpoint, its trunk at a URL.

    Every scorer has a client of its own, because a client is for one thread.

    Raises:
        CheckpointError: a checkpoint that does not match its manifest, or has no value head.
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
