"""Q models whose trunk runs on a vLLM server."""

from dataclasses import dataclass
from pathlib import Path

from qnet.batching import DeviceThread, ScoringWorker
from qnet.checkpoint import Manifest, embedded_path
from qnet.errors import ConfigError
from qnet.trunk import load_head
from qnet.vllm import VllmServer
from qnet.vllm_scoring import VllmScorer
from server.settings import EMBEDDED, SCRIPTED, Settings


@dataclass(frozen=True, slots=True)
class RemoteQModel:
    """A scorer that waits on a network, on a thread of its own: the device never waits for it.

    Attributes:
        context: most tokens that it takes.
    """

    worker: ScoringWorker
    context: int
    manifest: Manifest
    _thread: DeviceThread
    _scorer: VllmScorer

    def close(self) -> None:
        """Fail what waits, let the running request end, let go of the connections."""
        self._thread.close()
        self._scorer.close()


def build_remote_q_model(settings: Settings, name: str) -> RemoteQModel:
    """The Q model `name`: head and tokenizer from its checkpoint, trunk at its URL.

    Raises:
        CheckpointError: a checkpoint that does not match its manifest, or has no value head.
        ConfigError: no Q model of that name, a scripted one, or a server that will not do.
    """
    source = settings.q_models.get(name)
    if source is None or source == SCRIPTED:
        raise ConfigError(
            f"vllm_trunks names {name!r}, which is {source or 'no Q model'}; name one of q_models "
            "that is a checkpoint"
        )
    loaded = load_head(embedded_path("qnet") if source == EMBEDDED else Path(source))
    trunk = settings.vllm_trunks[name]
    server = VllmServer(
        str(trunk.url),
        model=loaded.trunk_name,
        hidden_size=loaded.trunk.hidden_size,
        api_key=trunk.api_key.get_secret_value() if trunk.api_key else None,
        timeout_s=settings.timeout_s,
    )
    scorer = VllmScorer(loaded, server, max_tokens=trunk.max_tokens)
    thread = DeviceThread(max_waiting=settings.max_waiting)
    worker = ScoringWorker(
        scorer, thread, max_batch=settings.max_batch, timeout_s=settings.timeout_s
    )
    return RemoteQModel(worker, scorer.context, loaded.manifest, thread, scorer)
