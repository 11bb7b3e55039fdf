"""Batched policies and scorers, built from the model names of a job file."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from qguide.qnet.decision.selection import DEFAULT_TAU, SelectionName
from qguide.qnet.errors import ConfigError
from qguide.qnet.memory_limits import total_bytes
from qguide.qnet.models.feature_q import FeatureScorer, load_feature_q
from qguide.qnet.models.manifest import Manifest, PriorSection, is_feature_q, read_manifest
from qguide.qnet.scoring.rules import RuledScorer, RuleScorer, split_rules
from qguide.qnet.types import BatchPolicy, Scorer
from qguide.training.environment import EnvironmentConfig, ExpertBuilder
from qguide.training.environments.registry import find_environment
from qguide.training.options import JobOptions
from qguide.training.rollouts.hosted import PlainUrl, is_hosted, read_key
from qguide.training.rollouts.judges import JUDGE, ServedJudge, build_judge_scorer, prompt_sha256
from qguide.training.rollouts.judges import MAY_CHANGE as JUDGES_MAY_CHANGE

if TYPE_CHECKING:
    import torch

CLASSIFY: Final = "classify:"
"""Beginning of the name of such a Q model; the server's name of the classifier follows."""


class ServedClassifier(JobOptions):
    """A server that runs a sequence classifier with one label as a Q model.

    Attributes:
        url: root URL of the server.
        tokenizer: folder or hub name of the classifier, of which the configuration and the
            tokenizer are read.
        api_key_variable: environment variable that holds the key; "" sends none.
        max_tokens: maximum conversation length in tokens; None uses the classifier's own maximum.
        timeout_s: longest silence of the server.
    """

    url: PlainUrl
    tokenizer: Path
    api_key_variable: str = Field(default="", pattern=r"^([A-Z_][A-Z0-9_]*)?$")
    max_tokens: int | None = Field(default=None, ge=1)
    timeout_s: float = Field(default=600.0, gt=0)


_CLASSIFIERS_MAY_CHANGE: Final = frozenset({"url", "api_key_variable", "timeout_s"})
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
        str(served.url), model=model, api_key=key.get_secret_value() if key else None, timeout_s=served.timeout_s
    )
    loaded = load_remote_classifier(served.tokenizer, name=model)
    return RemoteClassifyScorer(loaded, server, max_tokens=served.max_tokens)


EMBEDDED = "embedded"
EXPERT = "expert"
RANDOM: Final = "random"
SCRIPTED: Final = "scripted"
NO_MODEL: Final = (EXPERT, RANDOM, SCRIPTED)
"""Policies that need no model, by the names under which jobs know them."""


_MOST_CACHE_BYTES: Final = 2 * 1024**3
_PART_OF_MEMORY: Final = 8
"""A policy and a Q model then take a quarter of a small machine's memory, beside their weights."""


class Inference(JobOptions):
    """Device, precision and memory of a job's models, which change results only by rounding.

    Attributes:
        device: "cpu", "cuda", "cuda:1" …
        dtype: type of weights and activations.
        cache_bytes: memory of each model, a policy and a Q model apart, for the histories kept between steps. It
            fills up, because those of finished episodes stay until others need the room. If it cannot hold
            those of all episodes played in parallel, histories are computed again at each step. On a CPU a
            policy copies histories side by side while it draws; up to half of it is for these copies. None is
            2 GiB, or an eighth of the memory of the machine, or of its container, if
            that is less.
        threads: number of torch's threads; 0 leaves the choice to torch.
        full_sequences: run Q models whose architecture can neither be packed nor go on from a kept
            state on full sequences, which costs the whole history at every step; false refuses
            them.
        classifiers: servers of the Q models that are named `classify:NAME`, by that name.
        judges: chat models of the Q models that are named `judge:NAME`, by that name.
    """

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    cache_bytes: int | None = Field(default=None, ge=0)
    threads: int = Field(default=0, ge=0)
    full_sequences: bool = False
    classifiers: dict[str, ServedClassifier] = Field(default_factory=dict)
    judges: dict[str, ServedJudge] = Field(default_factory=dict)

    @property
    def most_cache_bytes(self) -> int:
        """Memory for the histories that a model keeps."""
        if self.cache_bytes is not None:
            return self.cache_bytes
        return min(_MOST_CACHE_BYTES, total_bytes() // _PART_OF_MEMORY)

    def torch_dtype(self) -> "torch.dtype":
        """The type of weights, once torch has its threads."""
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)
        found: torch.dtype = getattr(torch, self.dtype)
        return found


INFERENCE_MAY_CHANGE: Final = frozenset(
    {
        "inference.device",
        "inference.dtype",
        "inference.cache_bytes",
        "inference.threads",
        "inference.full_sequences",
        *(f"inference.classifiers.*.{name}" for name in _CLASSIFIERS_MAY_CHANGE),
        *(f"inference.judges.*.{name}" for name in JUDGES_MAY_CHANGE),
    }
)
"""Fields of `Inference` that a resumed run may change: no row depends on them beyond rounding."""


def build_policy(name: str, inference: Inference, environment: EnvironmentConfig) -> BatchPolicy:
    """Build the policy of that name.

    Args:
        name: "embedded" for the policy that ships with QGuide, "expert" for the environment's
            expert and its mistakes, or the folder of a checkpoint or any Hugging Face causal LM.
    """
    if name == EXPERT:
        return build_expert_policy(environment)

    from qguide.qnet.device.local_policy import LocalPolicy
    from qguide.qnet.models.checkpoint import load_policy

    loaded = load_policy(model_folder(name, "policy"), dtype=inference.torch_dtype(), device=inference.device)
    return LocalPolicy(loaded, cache_bytes=inference.most_cache_bytes)


def expert_builder(environment: EnvironmentConfig) -> ExpertBuilder:
    """The environment's function that makes a fresh expert for each episode."""
    build: ExpertBuilder | None = find_environment(environment.name).build_expert
    if build is None:
        raise ConfigError(
            f"environment {environment.name!r} has no expert; name an environment that has one, or "
            "a policy's folder instead of the expert"
        )
    return build


def build_expert_policy(environment: EnvironmentConfig) -> BatchPolicy:
    """The environment's expert as a policy: its reply at temperature 0, otherwise a mistake."""
    bundle = find_environment(environment.name)
    if bundle.build_expert_policy is None:
        raise ConfigError(f"environment {environment.name!r} has no expert; name a policy's folder instead")
    policy: BatchPolicy = bundle.build_expert_policy()
    return policy


def build_scorer(name: str, inference: Inference) -> Scorer:
    """Build the fast scorer of the Q model of that name.

    Args:
        name: "embedded" for the Q model that ships with QGuide, a checkpoint's folder (a QNet, an
            implicit Q, an ensemble or features), that of any sequence classifier with one label,
            `classify:NAME` for one of `inference.classifiers`, `judge:NAME` for one of
            `inference.judges`, or rules, alone or before another: see `qguide.qnet.scoring.rules`.
    """
    rules, behind = split_rules(name)
    if rules:
        return RuledScorer(rules, build_scorer(behind, inference)) if behind else RuleScorer(rules)
    if name.startswith(JUDGE):
        return build_judge_scorer(name, inference.judges)
    if name.startswith(CLASSIFY):
        return build_classify_scorer(name, inference.classifiers)

    folder = model_folder(name, "qnet")
    if is_feature_q(folder):
        model, manifest = load_feature_q(folder)
        return FeatureScorer(manifest.name, model)

    from qguide.qnet.engine.packed_model import DEFAULT_TOKENS_PER_FORWARD
    from qguide.qnet.models.checkpoint import load_q_model
    from qguide.qnet.scoring.build import build_serving_scorer

    loaded = load_q_model(folder, dtype=inference.torch_dtype(), device=inference.device)
    return build_serving_scorer(
        loaded,
        cache_bytes=inference.most_cache_bytes,
        tokens_per_forward=DEFAULT_TOKENS_PER_FORWARD,
        full_sequences=inference.full_sequences,
    )


def build_logprob_scorer(name: str, inference: Inference) -> Scorer:
    """Build a scorer whose score is a policy's log-probability, the baseline for every Q model."""
    from qguide.qnet.models.checkpoint import load_policy
    from qguide.qnet.scoring.logprobs import SharedPrefixLogprobScorer

    loaded = load_policy(model_folder(name, "policy"), dtype=inference.torch_dtype(), device=inference.device)
    return SharedPrefixLogprobScorer(loaded, cache_bytes=inference.most_cache_bytes)


def model_folder(name: str, kind: Literal["policy", "qnet"]) -> Path:
    """Folder of the model of that name."""
    from qguide.qnet.models import hub
    from qguide.qnet.models.loading import embedded_path

    if name == EMBEDDED:
        return embedded_path(kind)
    folder = hub.model_folder(name)
    if kind == "policy" and name not in NO_MODEL and not folder.exists():
        known = ", ".join((EMBEDDED, *NO_MODEL))
        raise ConfigError(
            f"there is no policy {name!r}; name a checkpoint's folder, a hub name, upstream:NAME, ADDRESS#MODEL, "
            f"or one of {known}"
        )
    return folder


def sha256_of_policy(name: str) -> str:
    """One hash over the weights of the policy of that name; "" if it has none here."""
    return "" if is_hosted(name) else weights_sha256(model_folder(name, "policy"))


def sha256_of_q_model(name: str, inference: Inference) -> str:
    """One hash over the weights of the Q model of that name; "" if it has none here.

    A judge's is that of its prompt.
    """
    _, name = split_rules(name)
    if name.startswith(JUDGE):
        return prompt_sha256(name, inference.judges)
    behind = name_of_weights(name)
    return weights_sha256(model_folder(behind, "qnet")) if behind else ""


def fitted_prior_of(name: str) -> PriorSection | None:
    """The prior that was fitted with the Q model of that name; None without one."""
    manifest = _manifest_of(name)
    return manifest.prior if manifest else None


def prior_in_use(name: str, selection: SelectionName | None, tau: float | None) -> PriorSection | None:
    """The prior beside the Q model of that name; None for the argmax of Q.

    Args:
        selection: None is what a server does: the posterior that was fitted with the model, if one was.
        tau: in place of the fitted one.
    """
    fitted = fitted_prior_of(name) if name and selection != "argmax" else None
    if selection == "posterior" or tau is not None:
        fitted = fitted or PriorSection(tau=DEFAULT_TAU)
    return fitted.model_copy(update={"tau": tau}) if fitted and tau is not None else fitted


def check_selection(selection: SelectionName | None, tau: float | None, *, q_field: str, q_name: str) -> None:
    """Refuse a tau that the argmax of Q does not have, and both where no Q model chooses."""
    if tau is not None and selection == "argmax":
        raise ValueError(f"tau is {tau}, and selection 'argmax' has none; leave out one of the two")
    if not q_name and (selection or tau is not None):
        said = f"selection is {selection!r}" if selection else f"tau is {tau}"
        raise ValueError(f"{said}, but no Q model chooses; name a {q_field}, or leave it out")


def licence_warning(name: str) -> str:
    """Warning of what this Q model's manifest lacks; "" for a licensed one, and for a judge."""
    if (manifest := _manifest_of(name)) is None:
        return ""
    return manifest.remark and f"{name} {manifest.remark}"


def environment_warning(name: str, environment: str) -> str:
    """Warning of the Q model that ships in another environment than its own; "" of any other Q model."""
    manifest = _manifest_of(EMBEDDED) if name == EMBEDDED else None
    if manifest is None or manifest.environment == environment:
        return ""
    return f"qnet is {name!r}, which has learned {manifest.environment} alone, not {environment}; name another"


def _manifest_of(name: str) -> Manifest | None:
    behind = name_of_weights(name)
    return read_manifest(model_folder(behind, "qnet")) if behind else None


def name_of_weights(q_model: str) -> str:
    """Name of the Q model behind the rules of a name; "" if it has no weights here."""
    _, name = split_rules(q_model)
    return "" if name.startswith((JUDGE, CLASSIFY)) else name


def weights_sha256(folder: Path) -> str:
    """One hash over the weights of a model, by its folder or hub name; "" if there are none."""
    from qguide.qnet.models.hub import model_folder as folder_of
    from qguide.qnet.models.manifest import sha256_of

    found = sorted(folder_of(folder).rglob("*.safetensors"))
    hashes = [f"{path.name} {sha256_of(path)}" for path in found]
    return sha256("\n".join(hashes).encode()).hexdigest() if hashes else ""
