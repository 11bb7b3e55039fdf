"""Q models of the jobs that run on a server with vLLM's /classify: `classify:NAME`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Scorer
from qguide.training.rollouts.hosted import PlainUrl, read_key

CLASSIFY: Final = "classify:"
"""Beginning of the name of such a Q model; the server's name of the classifier follows."""


class ServedClassifier(BaseModel):
    """A server that runs a sequence classifier with one label as a Q model.

    Attributes:
        url: root URL of the server.
        tokenizer: folder or hub name of the classifier, of which the configuration and the
            tokenizer are read.
        api_key_variable: environment variable that holds the key; "" sends none.
        max_tokens: maximum conversation length in tokens; None uses the classifier's own maximum.
        timeout_s: longest silence of the server.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: PlainUrl
    tokenizer: Path
    api_key_variable: str = Field(default="", pattern=r"^([A-Z_][A-Z0-9_]*)?$")
    max_tokens: int | None = Field(default=None, ge=1)
    timeout_s: float = Field(default=600.0, gt=0)


MAY_CHANGE: Final = frozenset({"url", "api_key_variable", "timeout_s"})
"""Fields of a served classifier that a resumed run may change; Q-values depend on the others."""


def build_classify_scorer(name: str, servers: Mapping[str, ServedClassifier]) -> Scorer:
    """Build the scorer of `classify:NAME`."""
    from qguide.qnet.models.classifier import load_remote_classifier
    from qguide.qnet.scoring.remote_classifier import RemoteClassifyScorer
    from qguide.qnet.scoring.vllm_client import ClassifyServer

    model = name.removeprefix(CLASSIFY)
    if model not in servers:
        raise ConfigError(
            f"the Q model is {name!r}, but inference.classifiers has "
            f"{', '.join(servers) or 'no entry'}; add the server there under the name {model!r}"
        )
    served = servers[model]
    key = read_key(f"classifier {model}", served.api_key_variable)
    server = ClassifyServer(
        str(served.url),
        model=model,
        api_key=key.get_secret_value() if key else None,
        timeout_s=served.timeout_s,
    )
    loaded = load_remote_classifier(served.tokenizer, name=model)
    return RemoteClassifyScorer(loaded, server, max_tokens=served.max_tokens)
