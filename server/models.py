"""The models that are served, by name, on one device thread."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar

import torch

from qnet.agent import AsyncScorer
from qnet.batching import DeviceThread, ScoringWorker
from qnet.checkpoint import Manifest, embedded_path, load_policy, load_q_model
from qnet.errors import ConfigError, UnknownModelError
from qnet.packed import context_length
from qnet.policies.local import LocalPolicy
from qnet.policies.scripted import ScriptedPolicy
from qnet.scorers import build_shared_prefix_scorer
from qnet.scoring import ScriptedScorer
from qnet.types import Policy, Scorer
from server.remote import RemoteQModel, build_remote_q_model
from server.settings import EMBEDDED, SCRIPTED, Settings

Model = TypeVar("Model", covariant=True)
Source = Literal["embedded", "scripted", "checkpoint", "vllm"]

DEMO_Q = {"Action: go to": 0.75, "Action: look": 0.5, "Action: inventory": 0.25}
"""What the scripted Q model thinks of the scripted policy's replies."""


@dataclass(frozen=True)
class Served(Generic[Model]):
    """A model under the name it is asked for by, and what its checkpoint says of it.

    Attributes:
        context: most tokens that it takes; None for a fake.
        manifest: None for a fake, and for a policy from elsewhere.
    """

    name: str
    model: Model
    source: Source
    context: int | None = None
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """Everything a request can name.

    Attributes:
        remote: those of the Q models whose trunk runs elsewhere, by name.
    """

    thread: DeviceThread
    policy: Served[Policy]
    q_models: dict[str, Served[AsyncScorer]]
    default_q_model: str
    remote: dict[str, RemoteQModel] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether every thread that serves requests is alive."""
        return self.thread.healthy and all(q.worker.healthy for q in self.remote.values())

    def close(self) -> None:
        """Fail what waits and let go of everything."""
        self.thread.close()
        for q_model in self.remote.values():
            q_model.close()

    def q_model(self, name: str | None) -> Served[AsyncScorer]:
        """The Q model of that name; None takes the default.

        Raises:
            UnknownModelError: no such Q model is served.
        """
        wanted = self.default_q_model if name is None else name
        if wanted not in self.q_models:
            raise UnknownModelError(
                f"there is no Q model {wanted!r}; served are {', '.join(sorted(self.q_models))}"
            )
        return self.q_models[wanted]

    def check_policy(self, name: str | None) -> None:
        """Refuse a policy that is not served.

        Raises:
            UnknownModelError: another policy than the one that is served.
        """
        if name not in (None, self.policy.name):
            raise UnknownModelError(f"there is no policy {name!r}; served is {self.policy.name}")


def build_models(settings: Settings) -> Models:
    """Load every model that `settings` names; takes seconds.

    Raises:
        CheckpointError: a checkpoint that does not match its manifest.
        ConfigError: the default Q model is not among those named.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    default = settings.default_q_model or next(iter(settings.q_models))
    if default not in settings.q_models:
        raise ConfigError(
            f"default_q_model is {default!r}; name one of {', '.join(settings.q_models)}"
        )
    remote = {name: build_remote_q_model(settings, name) for name in settings.vllm_trunks}
    thread = DeviceThread(max_waiting=settings.max_waiting)
    return Models(
        thread=thread,
        policy=_build_policy(settings, thread),
        q_models={
            name: _served_remote(name, remote[name])
            if name in remote
            else _build_scorer(settings, name, thread)
            for name in settings.q_models
        },
        default_q_model=default,
        remote=remote,
    )


def _build_policy(settings: Settings, thread: DeviceThread) -> Served[Policy]:
    if settings.policy == SCRIPTED:
        return Served(SCRIPTED, ScriptedPolicy(), SCRIPTED)
    folder = embedded_path("policy") if settings.policy == EMBEDDED else Path(settings.policy)
    loaded = load_policy(folder, dtype=_dtype(settings), device=settings.device)
    policy = LocalPolicy(loaded, thread=thread, cache_bytes=settings.cache_bytes)
    context = context_length(loaded.model.config)
    source = _source(settings.policy)
    name = EMBEDDED if source == EMBEDDED else loaded.name
    return Served(name, policy, source, context, loaded.manifest)


def _build_scorer(settings: Settings, name: str, thread: DeviceThread) -> Served[AsyncScorer]:
    def asynchronous(scorer: Scorer) -> AsyncScorer:
        return ScoringWorker(
            scorer, thread, max_batch=settings.max_batch, timeout_s=settings.timeout_s
        )

    source = settings.q_models[name]
    if source == SCRIPTED:
        return Served(name, asynchronous(ScriptedScorer(DEMO_Q)), SCRIPTED)
    folder = embedded_path("qnet") if source == EMBEDDED else Path(source)
    loaded = load_q_model(folder, dtype=_dtype(settings), device=settings.device)
    scorer = build_shared_prefix_scorer(loaded, cache_bytes=settings.cache_bytes)
    return Served(name, asynchronous(scorer), _source(source), scorer.context, loaded.manifest)


def _served_remote(name: str, q_model: RemoteQModel) -> Served[AsyncScorer]:
    return Served(name, q_model.worker, "vllm", q_model.context, q_model.manifest)


def _source(setting: str) -> Source:
    return EMBEDDED if setting == EMBEDDED else "checkpoint"


def _dtype(settings: Settings) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype
