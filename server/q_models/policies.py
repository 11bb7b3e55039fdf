"""Served policies: upstreams, checkpoints in this process, and fakes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.errors import ConfigError, UnknownModelError
from qguide.qnet.models.hub import is_hub_name
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.native_requests import DialectName
from qguide.qnet.packages import MODELS, extra_named
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.scripted import ScriptedParaphraser, ScriptedPolicy
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Candidate, History, Policy, Sampling, TaskMarker, spent_on
from qguide.qnet.usage import TokenUsage, total_of
from qguide.qnet.work_context import collect_usage, in_session
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import named_deployment, tell_stand_in
from qguide.server.q_models.served import Source, Stage, measured, source_of
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import DEFAULT_POLICY, EMBEDDED, SCRIPTED, Settings, UnknownModels


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy and the metadata of its checkpoint.

    Attributes:
        context: context length in tokens; None for a fake, or an upstream whose settings name none.
        manifest: None for a fake, an upstream or a folder that is not a QGuide checkpoint.
        upstream_model: the model's name at its upstream; None if it runs in this process.
        dialect: in which its upstream is asked.
    """

    name: str
    model: Policy
    source: Source
    context: int | None = None
    manifest: Manifest | None = None
    upstream_model: str | None = None
    dialect: DialectName = "chat"

    @property
    def task_markers(self) -> tuple[TaskMarker, ...]:
        """Markers of the task in a first user message, if its checkpoint has any."""
        return self.manifest.task_markers if self.manifest else ()


def build_upstreams(settings: Settings) -> tuple[ServedPolicy, ...]:
    """Build the policy of every upstream; nothing is sent before the first request."""
    return tuple(
        ServedPolicy(
            name,
            build_upstream(settings, name, upstream),
            "upstream",
            context=upstream.context,
            upstream_model=upstream.model,
            dialect=upstream.dialect,
        )
        for name, upstream in settings.upstreams.items()
    )


def find_policy(
    name: str | None, default: ServedPolicy, upstreams: Sequence[ServedPolicy], unknown: UnknownModels
) -> ServedPolicy:
    """Find a policy by its name or its upstream's model name; None is the URL's or the default."""
    name = named_deployment() if name is None else name
    if name is None or name == DEFAULT_POLICY:
        return default
    policies = {policy.name: policy for policy in (default, *upstreams)}
    of_model = [policy for policy in upstreams if policy.upstream_model == name]
    if name in policies or len(of_model) == 1:
        return policies.get(name) or of_model[0]
    if stand_in(policies.keys(), default.name, unknown) is None:
        raise UnknownModelError(f"there is no policy {name!r}; this server has {', '.join(policies)}")
    return default


def stand_in(served: Collection[str], default: str, unknown: UnknownModels) -> str | None:
    """The model that serves requests for unknown ones, which the caller is told; None for none."""
    if unknown == "error" or (unknown == "only" and len(served) != 1):
        return None
    name = next(iter(served)) if len(served) == 1 else default
    tell_stand_in(name)
    return name


def named_policy(
    named: str, settings: Settings, thread: DeviceThread, upstreams: Sequence[ServedPolicy]
) -> ServedPolicy:
    """The upstream of that name, or else a policy in this process."""
    for upstream in upstreams:
        if upstream.name == named:
            return upstream
    return _build_policy(named, settings, thread)


def _build_policy(named: str, settings: Settings, thread: DeviceThread) -> ServedPolicy:
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


def build_paraphraser(
    settings: Settings, thread: DeviceThread, upstreams: Sequence[ServedPolicy]
) -> ServedPolicy | None:
    """Build the policy that rewords tasks; "scripted" is a fake that paraphrases."""
    if not settings.paraphraser:
        return None
    if settings.paraphraser == SCRIPTED:
        return ServedPolicy(SCRIPTED, ScriptedParaphraser(), SCRIPTED)
    return named_policy(settings.paraphraser, settings, thread, upstreams)


class MeteredPolicy:
    """A policy whose draws are traced, timed and charged.

    A draw that fails or is cancelled is charged for what upstreams have answered and the device
    has computed by then; the tokens of an unfinished upstream request are unknown.

    Args:
        session_id: the episode that the draws belong to, and nothing else of the step; "" for none.
    """

    def __init__(self, policy: Policy, metrics: Metrics, *, stage: Stage, session_id: str = "") -> None:
        self.name = policy.name
        self._policy = policy
        self._metrics = metrics
        self._stage = stage
        self._session_id = session_id

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw candidates, measuring the time including waits."""
        with measured(self._stage, self._metrics), collect_usage() as answered:
            try:
                with in_session(self._session_id):
                    drawn = await self._policy.sample(history, n=n, sampling=sampling)
            except BaseException:  # including the cancellation when the client disconnects
                self._count(total_of(answered))
                raise
        spent = spent_on(drawn)
        self._count(spent)
        return _with_usage(drawn, spent)

    def _count(self, spent: TokenUsage) -> None:
        self._metrics.count_drawn(prompt=spent.prompt_tokens, completion=spent.completion_tokens)
        if self._stage == "paraphrase":
            self._metrics.paraphrase_tokens.inc(spent.prompt_tokens + spent.completion_tokens)


def _with_usage(drawn: list[Candidate], spent: TokenUsage) -> list[Candidate]:
    """Attach the usage, as upstreams report it, so that a decision's usage equals the charge."""
    if not drawn or any(candidate.spent for candidate in drawn):
        return drawn
    return [replace(drawn[0], spent=spent), *drawn[1:]]


_SHARE_OF_DECISION: Final = 0.9
"""Below 1, so that the circuit breaker sees the timeout before the decision's own deadline."""


def check_policies(settings: Settings) -> None:
    """Check that `policy` and `paraphraser` name something, before anything is loaded."""
    for setting, named in (("POLICY", settings.policy), ("PARAPHRASER", settings.paraphraser)):
        known = named in ("", EMBEDDED, SCRIPTED, *settings.upstreams)
        if known or Path(named).is_dir() or is_hub_name(named):
            continue
        upstreams = ", ".join(settings.upstreams) or "none; add it to QGUIDE_UPSTREAMS"
        raise ConfigError(
            f"QGUIDE_{setting} is {named!r}, which is no upstream ({upstreams}), no folder and no "
            f"name on the Hugging Face hub; name one of them, {EMBEDDED!r} or {SCRIPTED!r}"
        )


def build_upstream(settings: Settings, name: str, upstream: Upstream) -> OpenAICompatiblePolicy:
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
    return OpenAICompatiblePolicy.of(
        name, upstream, upstream.api_key, limits, takes_cache_salt=upstream.cache_salt, streams=upstream.stream
    )
