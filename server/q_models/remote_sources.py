"""Q models beyond a folder: their trunk on vLLM, all of one behind its /classify, own code.

Every scorer has its own client, because a client must be used from one thread only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import import_named, raised_text
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.server.q_models.served import plain_name
from qguide.server.q_models.threaded import ScorerSource
from qguide.server.settings.remote_models import Classifier, VllmTrunk
from qguide.server.settings.settings import SCRIPTED, Settings

Served = TypeVar("Served", bound=VllmTrunk)


def check_servers(settings: Settings) -> None:
    """Check that each server of `vllm_trunks` and `classifiers` belongs to a Q model's folder."""
    by_setting: dict[str, Mapping[str, VllmTrunk]] = {
        "VLLM_TRUNKS": settings.vllm_trunks,
        "CLASSIFIERS": settings.classifiers,
    }
    for setting, servers in by_setting.items():
        for name in servers:
            named = {q: s for q, s in settings.served_q_models.items() if name in (q, plain_name(q))}
            if not named or SCRIPTED in named.values():
                raise ConfigError(
                    f"QGUIDE_{setting} names {name!r}, which is {'a scripted Q model' if named else 'not a Q model'}; "
                    "name an entry of QGUIDE_Q_MODELS that has a folder"
                )
    if both := settings.vllm_trunks.keys() & settings.classifiers.keys():
        raise ConfigError(
            f"QGUIDE_VLLM_TRUNKS and QGUIDE_CLASSIFIERS both name {min(both)!r}; a server runs either its trunk or the "
            "whole of it: remove one"
        )


def server_of(servers: Mapping[str, Served], name: str) -> Served | None:
    """The server of `name` or `name@version`; None if the Q model runs locally."""
    return servers.get(name) or servers.get(plain_name(name))


def build_vllm_scorer_source(settings: Settings, folder: Path, trunk: VllmTrunk) -> ScorerSource:
    """Source of a Q model with head and tokenizer from a checkpoint and its trunk at a URL."""
    # The tokenizer's library takes a second to import, which a server without a tokenizer saves.
    from qguide.qnet.models.remote_trunk import load_remote_trunk
    from qguide.qnet.scoring.vllm import VllmScorer
    from qguide.qnet.scoring.vllm_client import VllmServer

    loaded = load_remote_trunk(folder)

    def build() -> CachingScorer:
        server = VllmServer(
            str(trunk.url),
            model=loaded.trunk_name,
            hidden_size=loaded.trunk.hidden_size,
            api_key=trunk.api_key.get_secret_value() if trunk.api_key else None,
            timeout_s=settings.timeout_s,
        )
        return VllmScorer(loaded, server, max_tokens=trunk.max_tokens)

    return ScorerSource(build, "vllm", loaded.manifest, own_thread=True, precision="vllm", renderer=loaded.renderer)


def build_classify_source(settings: Settings, folder: Path, classifier: Classifier) -> ScorerSource:
    """Source of a Q model with the tokenizer of a folder and its weights at a URL."""
    # The tokenizer's library takes a second to import, which a server without a tokenizer saves.
    from qguide.qnet.models.classifier import load_remote_classifier
    from qguide.qnet.scoring.remote_classifier import RemoteClassifyScorer
    from qguide.qnet.scoring.vllm_client import ClassifyServer

    loaded = load_remote_classifier(folder, name=classifier.model)
    url = str(classifier.url)

    def build() -> CachingScorer:
        server = ClassifyServer(
            url,
            model=classifier.model,
            api_key=classifier.api_key.get_secret_value() if classifier.api_key else None,
            timeout_s=settings.timeout_s,
        )
        return RemoteClassifyScorer(loaded, server, max_tokens=classifier.max_tokens)

    # The folder says nothing of the weights, so the address keeps cached scores apart.
    precision = f"classify {url}"
    return ScorerSource(build, "vllm", loaded.manifest, own_thread=True, precision=precision, renderer=loaded.renderer)


def build_imported_source(path: str) -> ScorerSource:
    """Source of a scorer of the operator's own code: a factory without arguments."""

    def build() -> CachingScorer:
        try:
            scorer = import_named(path)()
        except Exception as error:
            raise ConfigError(
                f"Q model {path!r} cannot be built: {raised_text(error)}; name a class or a factory without arguments, "
                "installed or in the current folder"
            ) from error
        if not isinstance(scorer, CachingScorer):
            raise ConfigError(
                f"Q model {path!r} is of type {type(scorer).__name__}; make it a subclass of "
                "qguide.qnet.sliced_scorer.CachingScorer"
            )
        return scorer

    # It may wait for whatever it likes, and the device thread must not.
    return ScorerSource(build, "imported", own_thread=True)
