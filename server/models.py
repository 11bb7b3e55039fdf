"""The models that are served, by name, on one device thread."""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from qnet.agent import AsyncScorer
from qnet.batching import DeviceThread, ScoringWorker
from qnet.checkpoint import Manifest, embedded_path, load_policy, load_qnet
from qnet.errors import ConfigError, UnknownModelError
from qnet.policies.local import LocalPolicy
from qnet.policies.scripted import ScriptedPolicy
from qnet.scoring import ScriptedScorer, SharedPrefixScorer
from qnet.types import Policy, Scorer
from server.settings import EMBEDDED, SCRIPTED, Settings

Model = TypeVar("Model", covariant=True)


@dataclass(frozen=True)
class Served(Generic[Model]):
    """A model under the name it is asked for by, and what its checkpoint says of it."""

    name: str
    model: Model
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Models:
    """Everything a request can name."""

    thread: DeviceThread
    policy: Served[Policy]
    q_models: dict[str, Served[AsyncScorer]]
    default_q_model: str

    def q_model(self, name: str | None) -> Served[AsyncScorer]:
        """The Q model of that name; None takes the default.

        Raises:
            UnknownModelError: no such Q model is served.
        """
        wanted = name or self.default_q_model
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
    thread = DeviceThread(max_waiting=settings.max_waiting)
    return Models(
        thread=thread,
        policy=_build_policy(settings, thread),
        q_models={name: _build_scorer(settings, name, thread) for name in settings.q_models},
        default_q_model=default,
    )


def _build_policy(settings: Settings, thread: DeviceThread) -> Served[Policy]:
    if settings.policy == SCRIPTED:
        return Served(SCRIPTED, ScriptedPolicy(), None)
    folder = embedded_path("policy") if settings.policy == EMBEDDED else Path(settings.policy)
    loaded = load_policy(folder, dtype=_dtype(settings), device=settings.device)
    policy = LocalPolicy(loaded, thread=thread, cache_bytes=settings.cache_bytes)
    return Served(loaded.name, policy, loaded.manifest)


def _build_scorer(settings: Settings, name: str, thread: DeviceThread) -> Served[AsyncScorer]:
    source = settings.q_models[name]
    manifest: Manifest | None = None
    scorer: Scorer
    if source == SCRIPTED:
        scorer = ScriptedScorer({})
    else:
        folder = embedded_path("qnet") if source == EMBEDDED else Path(source)
        loaded = load_qnet(folder, dtype=_dtype(settings), device=settings.device)
        scorer = SharedPrefixScorer(loaded, cache_bytes=settings.cache_bytes)
        manifest = loaded.manifest
    worker = ScoringWorker(
        scorer, thread, max_batch=settings.max_batch, timeout_s=settings.timeout_s
    )
    return Served(name, worker, manifest)


def _dtype(settings: Settings) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype
