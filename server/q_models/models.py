"""Served models: the policies and Q models that a request can name, and what they run on."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from time import time
from typing import Final

from qguide.qnet.errors import UnknownModelError
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.native_requests import DialectName
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.types import Candidate, History, Policy, Sampling, TaskMarker, spent_on
from qguide.qnet.work import TokenUsage, collect_usage, in_session, total_of
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import named_deployment, tell_stand_in
from qguide.server.q_models.aliases import DEFAULT
from qguide.server.q_models.registry import QModels
from qguide.server.q_models.served import Runtime, ServedQModel, Source, Stage, measured
from qguide.server.settings.settings import DEFAULT_POLICY, EMBEDDED, NONE, UnknownModels

_SHADOW_END_S: Final = 1.0


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


@dataclass(frozen=True, slots=True)
class Models:
    """All models that a request can name, and the threads they run on.

    Attributes:
        policy: the default policy.
        paraphraser: the policy that rewords tasks; None if none is configured.
        upstreams: all upstreams, including the default policy if it is one.
        started_at: Unix time in seconds.
        unknown: which unknown names mean a model that is served; see `Settings.unknown_models`.
        q_model_named: the settings name a Q model.
        loading: held while one is loaded.
    """

    runtime: Runtime
    policy: ServedPolicy
    q_models: QModels
    paraphraser: ServedPolicy | None = None
    upstreams: tuple[ServedPolicy, ...] = ()
    started_at: int = field(default_factory=lambda: int(time()))
    unknown: UnknownModels = "error"
    q_model_named: bool = True
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def healthy(self) -> bool:
        """True while every thread that answers requests is alive."""
        return self.runtime.thread.healthy and all(model.healthy for model in self.q_models)

    @property
    def waiting(self) -> int:
        """Number of requests with a score that waits for the device or a Q model's own thread."""
        return len(self.runtime.thread.waiting.union(*(model.waiting for model in self.q_models)))

    @property
    def cached_bytes(self) -> int:
        """Keys and values of the Q model that keeps most of them."""
        return max((model.cached_bytes for model in self.q_models), default=0)

    @property
    def remote(self) -> list[OpenAICompatiblePolicy]:
        """Policies of all upstreams."""
        policies = [upstream.model for upstream in self.upstreams]
        return [one for one in policies if isinstance(one, OpenAICompatiblePolicy)]

    @property
    def policies(self) -> dict[str, ServedPolicy]:
        """Policies by name, the default first."""
        return {policy.name: policy for policy in (self.policy, *self.upstreams)}

    def find_policy(self, name: str | None) -> ServedPolicy:
        """Find a policy by its name or its upstream's model name; None is the URL's or the default."""
        name = named_deployment() if name is None else name
        if name is None or name == DEFAULT_POLICY:
            return self.policy
        policies = self.policies
        of_model = [policy for policy in self.upstreams if policy.upstream_model == name]
        if name in policies or len(of_model) == 1:
            return policies.get(name) or of_model[0]
        if self._stand_in(policies.keys(), self.policy.name) is None:
            raise UnknownModelError(f"there is no policy {name!r}; this server has {', '.join(policies)}")
        return self.policy

    def find_reranker(self, name: str | None) -> str | None:
        """Name of the Q model for a foreign client, whose names may be another service's."""
        if name is None or name in self.q_models.routes:
            return name
        served = {one.name for one in self.q_models if one.source != NONE}
        return self._stand_in(served, DEFAULT) or name

    def q_model_for(self, policy: ServedPolicy, named: str | None) -> str | None:
        """Name of the Q model of a policy's step; None is the default.

        The embedded Q model knows one text game. Unless somebody names it, it scores only what the
        embedded policy draws.
        """
        default = self.q_models.routes.aliases.get(DEFAULT, {})
        if named or self.q_model_named or policy.source == EMBEDDED or EMBEDDED not in default:
            return named
        return NONE

    def _stand_in(self, served: Collection[str], default: str) -> str | None:
        """The model that serves requests for unknown ones, which the caller is told; None for none."""
        if self.unknown == "error" or (self.unknown == "only" and len(served) != 1):
            return None
        name = next(iter(served)) if len(served) == 1 else default
        tell_stand_in(name)
        return name

    def give_up(self, model: ServedQModel) -> None:
        """Close an opened Q model that is not served; a version of its name and id may be."""
        model.retire(keep_series=any(other.id == model.id for other in self.q_models))

    async def close(self) -> None:
        """Stop all threads and connections; does not wait for a shadow that hangs."""
        await self.q_models.close()
        for upstream in self.remote:
            await upstream.close()
        self.runtime.thread.close()
        self.runtime.shadow_thread.close(timeout_s=_SHADOW_END_S)
        for model in self.q_models:
            model.close()
        await asyncio.to_thread(self.runtime.metrics.tracing.close)
