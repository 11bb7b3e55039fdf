"""Scorers of Q models that run as a whole on a server with vLLM's /classify."""

from pathlib import Path

from qguide.qnet.sliced_scorer import CachingScorer
from qguide.server.q_models.registry import ScorerSource
from qguide.server.settings.remote_models import Classifier
from qguide.server.settings.settings import Settings


def build_classify_source(settings: Settings, folder: Path, classifier: Classifier) -> ScorerSource:
    """Source of a Q model with the tokenizer of a folder and its weights at a URL.

    Every scorer has its own client, because a client must be used from one thread only.
    """
    # The tokenizer's library takes a second to import, which a server without a tokenizer saves.
    from qguide.qnet.models.remote_classifier import load_remote_classifier
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
    return ScorerSource(
        build,
        "vllm",
        loaded.manifest,
        own_thread=True,
        precision=precision,
        renderer=loaded.renderer,
    )
