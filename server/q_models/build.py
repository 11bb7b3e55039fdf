"""Builds the served models: from the settings at startup, from a checkpoint folder at run time."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from qguide.qnet.device.device_thread import DeviceThread, is_lost
from qguide.qnet.errors import (
    CheckpointError,
    ConfigError,
    InvalidRequestError,
    QGuideError,
    RoutingError,
    UnknownModelError,
)
from qguide.qnet.models.ensemble import load_domain
from qguide.qnet.models.hub import is_hub_name, model_folder
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import Manifest, content_sha256, is_feature_q, require_checkpoint
from qguide.qnet.packages import LEARN, MODELS, REMOTE, extra_named, plugins
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.scripted import ScriptedParaphraser, ScriptedPolicy
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.scoring.rules import split_rules
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import build_tracing
from qguide.server.q_models.judge import build_judge, check_judges, is_judge
from qguide.server.q_models.registry import DEFAULT, Models, QModels, Shares, shares_of
from qguide.server.q_models.remote_sources import (
    build_classify_source,
    build_imported_source,
    build_vllm_scorer_source,
    check_servers,
    server_of,
)
from qguide.server.q_models.served import Runtime, ServedPolicy, ServedQModel, plain_name, source_of
from qguide.server.q_models.threaded import QModel, ScorerSource
from qguide.server.q_models.without_model import NoQModel, RuleQModel, unguided_policies
from qguide.server.redis.client import RedisLink, SharedRows
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, NONE, SCRIPTED, Settings

DEMO_Q = {
    "Action: put": 0.95,
    "Action: take": 0.85,
    "Action: go to": 0.75,
    "Action: look": 0.5,
    "Action: inventory": 0.25,
}
"""Q-values of the scripted Q model for the replies of the scripted policy and of the demo."""

_log = structlog.get_logger(__name__)

_VERSION_DIGITS: Final = 12
_NO_VERSION: Final = "0"  # default version of what has no content to be known by: the fake, and the operator's own code
_IMPORT_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,7}")
_SHARE_OF_DECISION: Final = 0.9
"""Below 1, so that the circuit breaker sees the timeout before the decision's own deadline."""


def build_models(settings: Settings) -> Models:
    """Load all configured models, which takes seconds."""
    check_servers(settings)
    check_judges(settings)
    check_policies(settings)
    runtime = build_runtime(settings)
    try:
        upstreams = tuple(_build_upstream(settings, name, one) for name, one in settings.upstreams.items())
        policy = _named_policy(settings.policy, settings, runtime.thread, upstreams)
        paraphraser = _build_paraphraser(settings, runtime.thread, upstreams)
        q_models = _build_q_models(runtime, upstreams)
        check_thresholds(settings, q_models)
        if unguided := unguided_policies(settings):
            (_log.info if settings.learn else _log.warning)(unguided)
        return Models(runtime, policy, q_models, paraphraser, upstreams)
    except QGuideError:
        runtime.thread.close()
        runtime.shadow_thread.close()
        raise


def _build_upstream(settings: Settings, name: str, upstream: Upstream) -> ServedPolicy:
    """Build the policy of one upstream; nothing is sent before the first request."""
    limits = UpstreamLimits(
        timeout_s=upstream.timeout_s or min(settings.idle_timeout_s, settings.timeout_s * _SHARE_OF_DECISION),
        connect_timeout_s=upstream.connect_timeout_s,
        max_connections=upstream.max_connections,
        max_answer_bytes=upstream.max_answer_bytes,
        retries=upstream.retries,
        breaker_failures=upstream.breaker_failures,
        breaker_open_s=upstream.breaker_open_s,
    )
    policy = OpenAICompatiblePolicy.of(
        name, upstream, upstream.api_key, limits, takes_cache_salt=upstream.cache_salt, streams=upstream.stream
    )
    return ServedPolicy(
        name,
        policy,
        "upstream",
        context=upstream.context,
        upstream_model=upstream.model,
        dialect=upstream.dialect,
        upstream=policy,
    )


def _named_policy(
    named: str, settings: Settings, thread: DeviceThread, upstreams: Sequence[ServedPolicy]
) -> ServedPolicy:
    for upstream in upstreams:
        if upstream.name == named:
            return upstream
    if named == SCRIPTED:
        return ServedPolicy(SCRIPTED, ScriptedPolicy(), SCRIPTED)
    folder = embedded_path("policy") if named == EMBEDDED else Path(named)
    with extra_named(
        f"the policy {named!r}, which would run in this process,",
        MODELS,
        otherwise=", or name an upstream (QGUIDE_UPSTREAMS and QGUIDE_POLICY)",
    ):
        from qguide.server.q_models.local_models import build_local_policy

    policy, loaded = build_local_policy(settings, folder, thread)
    source = source_of(named)
    name = EMBEDDED if source == EMBEDDED else loaded.name
    return ServedPolicy(name, policy, source, policy.context, loaded.manifest)


def _build_paraphraser(
    settings: Settings, thread: DeviceThread, upstreams: Sequence[ServedPolicy]
) -> ServedPolicy | None:
    if not settings.paraphraser:
        return None
    if settings.paraphraser == SCRIPTED:
        return ServedPolicy(SCRIPTED, ScriptedParaphraser(), SCRIPTED)
    return _named_policy(settings.paraphraser, settings, thread, upstreams)


def build_runtime(settings: Settings) -> Runtime:
    """Build the threads, metrics and caches that all Q models share."""
    endpoint = settings.otlp_endpoint
    metrics = Metrics(build_tracing(str(endpoint) if endpoint else None))
    url, ttl_s = settings.redis_url, settings.score_cache_ttl_s
    redis = RedisLink(url.get_secret_value(), metrics) if url else None
    return Runtime(
        thread=DeviceThread(max_waiting=settings.max_waiting, is_lost=is_lost),
        shadow_thread=DeviceThread(max_waiting=settings.max_waiting, is_lost=is_lost),
        metrics=metrics,
        settings=settings,
        redis=redis,
        scores=SharedRows(redis, "q", ttl_s=ttl_s) if ttl_s else None,
    )


def _build_q_models(runtime: Runtime, upstreams: Sequence[ServedPolicy]) -> QModels:
    q_models, settings = QModels(runtime.metrics), runtime.settings
    with ExitStack() as refused:
        for given, source in settings.served_q_models.items():
            name, _, version = given.partition("@")
            model = _configured_q_model(runtime, upstreams, source, name=name, version=version or None)
            refused.callback(model.close)
            q_models.add(model)
        q_models.configure(_aliases(settings), settings.shadows)
        refused.pop_all()
    return q_models


def _configured_q_model(
    runtime: Runtime, upstreams: Sequence[ServedPolicy], source: str, *, name: str, version: str | None
) -> ServedQModel:
    rules, behind = split_rules(source)
    if rules and not behind:
        return RuleQModel(name, version, rules, runtime)
    if rules:
        model = _configured_q_model(runtime, upstreams, behind, name=name, version=version)
        model.put_behind(rules)
        return model
    if source == NONE:
        return NoQModel(name, version, runtime)
    if not is_judge(source):
        return open_q_model(runtime, source, name=name, version=version)
    return build_judge(source, runtime, upstreams, name=name, version=version)


def _aliases(settings: Settings) -> dict[str, Shares]:
    """The configured aliases and `default`, unless a Q model has that name."""
    aliases = dict(settings.aliases)
    first, *others = map(plain_name, settings.served_q_models)
    if settings.default_q_model not in ("", DEFAULT):
        aliases[DEFAULT] = settings.default_q_model
    elif DEFAULT not in (first, *others):
        aliases.setdefault(DEFAULT, first)
    return {alias: shares_of(target) for alias, target in aliases.items()}


def _folder_beneath(models_dir: Path | None, folder: str) -> Path:
    if models_dir is None:
        raise InvalidRequestError("loading Q models is disabled; set QGUIDE_MODELS_DIR")
    if not _FOLDER.fullmatch(folder):
        raise InvalidRequestError(
            f"{folder!r} is no folder in QGUIDE_MODELS_DIR; send a relative path whose at most 8 names have 1 to 128 "
            "letters, digits and ._- and start with a letter or digit"
        )
    path = models_dir.resolve() / folder
    if not path.is_dir() or path.resolve() != path:
        raise UnknownModelError(f"there is no folder {folder!r} in QGUIDE_MODELS_DIR; put the checkpoint there")
    return path


def open_q_model(runtime: Runtime, source: str, *, name: str, version: str | None, unlicensed: bool = False) -> QModel:
    """Verify, load and build a Q model, which takes seconds; only building uses the device."""
    settings = runtime.settings
    found, origin = version_and_source(settings, source, f"{name}@{version}" if version else name)
    require_licence(origin.manifest, name, unlicensed=unlicensed or settings.unlicensed)
    model = QModel(name, version or found, origin, runtime)
    with ExitStack() as refused:
        refused.callback(model.close)
        model.open()
        refused.pop_all()
    return model


async def serve_folder(
    models: Models, folder: str, *, name: str, version: str | None, replacing: bool, unlicensed: bool = False
) -> None:
    """Verify and serve the Q model of a subfolder of `models_dir`, one load at a time.

    Args:
        version: None takes the start of the manifest's hash.
        replacing: see `AliasTable.add`.
    """
    path = _folder_beneath(models.runtime.settings.models_dir, folder)
    async with models.loading:
        opening = asyncio.create_task(
            asyncio.to_thread(
                open_q_model, models.runtime, str(path), name=name, version=version, unlicensed=unlicensed
            )
        )
        try:
            model = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on loading; without this, the weights, thread and metric series of the model would never
            # be freed.
            with suppress(QGuideError):
                models.give_up(await opening)
            raise
        try:
            models.q_models.add(model, replacing=replacing)
        except RoutingError:
            models.give_up(model)
            raise


def version_and_source(settings: Settings, source: str, name: str) -> tuple[str, ScorerSource]:
    """Default version of a source, by its content, and the builder of its scorer."""
    if source == SCRIPTED:
        return _NO_VERSION, ScorerSource(lambda: ScriptedScorer(DEMO_Q), SCRIPTED)
    path = source if source == EMBEDDED else plugins("scorers").get(source, source)
    if _IMPORT_PATH.fullmatch(path):
        return _NO_VERSION, build_imported_source(path)
    with extra_named(f"{name}, a Q model of the hub,", MODELS):
        folder = embedded_path("qnet") if source == EMBEDDED else model_folder(source)
    origin = replace(_source_of_folder(settings, folder, source, name), domain=load_domain(folder))
    assert origin.manifest is not None
    return content_sha256(folder, origin.manifest)[:_VERSION_DIGITS], origin


def _source_of_folder(settings: Settings, folder: Path, source: str, name: str) -> ScorerSource:
    with extra_named(f"{name}, a Q model on another server whose tokenizer is here,", REMOTE):
        if trunk := server_of(settings.vllm_trunks, name):
            return build_vllm_scorer_source(settings, folder, trunk)
        if classifier := server_of(settings.classifiers, name):
            return build_classify_source(settings, folder, classifier)
    if is_feature_q(folder):
        with extra_named(f"{name}, a learned Q model,", LEARN):
            from qguide.qnet.models.feature_q import FeatureScorer, load_feature_q
        model, manifest = load_feature_q(folder)
        scorer = FeatureScorer(manifest.name, model)
        return ScorerSource(lambda: scorer, source_of(source), manifest)
    if not folder.is_dir():  # it is not torch that is missing
        require_checkpoint(folder)
    with extra_named(
        f"{name}, a Q model in this process,",
        MODELS,
        otherwise=", or run it on a server (QGUIDE_VLLM_TRUNKS, QGUIDE_CLASSIFIERS)",
    ):
        from qguide.server.q_models.local_models import build_local_source

    return build_local_source(settings, folder, source_of(source))


def check_policies(settings: Settings) -> None:
    """Check that `policy` and `paraphraser` name something, before anything is loaded."""
    for setting, named in (("POLICY", settings.policy), ("PARAPHRASER", settings.paraphraser)):
        known = named in ("", EMBEDDED, SCRIPTED, *settings.upstreams)
        if known or Path(named).is_dir() or is_hub_name(named):
            continue
        upstreams = ", ".join(settings.upstreams) or "none; add it to QGUIDE_UPSTREAMS"
        raise ConfigError(
            f"QGUIDE_{setting} is {named!r}, which is no upstream ({upstreams}), no folder and no name on the Hugging "
            f"Face hub; name one of them, {EMBEDDED!r} or {SCRIPTED!r}"
        )


def check_thresholds(settings: Settings, q_models: Iterable[ServedQModel]) -> None:
    """Check that each threshold belongs to a Q model, and each escalation to an upstream."""
    served = list(q_models)
    for name, threshold in settings.thresholds.items():
        named = [one for one in served if name in (one.id, one.name)]
        if not named and settings.models_dir is None:
            known = sorted({name for one in served for name in (one.id, one.name)})
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, which is not a Q model; name an entry of QGUIDE_Q_MODELS: "
                f"{', '.join(known)}"
            )
        if ranking := [one for one in named if one.ranks]:
            raise ConfigError(
                f"QGUIDE_THRESHOLDS names {name!r}, {ranking[0].kind} that ranks the candidates of one step, so no "
                f"value can be compared with a threshold; {ranking[0].comparable}"
            )
        if threshold.policy and threshold.policy not in settings.upstreams:
            upstreams = ", ".join(settings.upstreams) or "none"
            raise ConfigError(
                f"the threshold of {name!r} escalates to {threshold.policy!r}, which is no upstream ({upstreams}); "
                "name an entry of QGUIDE_UPSTREAMS"
            )


def require_licence(manifest: Manifest | None, name: str, *, unlicensed: bool) -> None:
    """Refuse a Q model that was judged and has no licence; log it of one that was not judged."""
    if manifest is None or not manifest.remark:
        return
    if manifest.licence is not None and not unlicensed:
        raise CheckpointError(
            f"{name} {manifest.remark}; train on more data, or serve it all the same with --unlicensed "
            "(QGUIDE_UNLICENSED; `unlicensed` of POST /v1/models/load)"
        )
    _log.warning("unlicensed Q model", q_model=name, reason=manifest.remark)
