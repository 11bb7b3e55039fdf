"""Hosted policies of jobs: models of OpenAI-compatible servers, with usage, prices and patience.

A job file names one by its `[upstreams.NAME]` table, or by its address alone:

    policy = "upstream:gpt"
    policy = "http://127.0.0.1:8000/v1#Qwen/Qwen3-8B"

One string then names any policy, wherever a job takes one. Keys are read from the environment and
never written anywhere.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, HttpUrl, JsonValue, SecretStr, TypeAdapter, ValidationError

from qguide.qnet.errors import ConfigError, InvalidRequestError, UpstreamError, UpstreamLostError, without_secrets
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.token_budget import TokenBudget, tokens_of
from qguide.qnet.policies.upstream_settings import ApiKey, UpstreamLimits, UpstreamName, UpstreamSettings
from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling
from qguide.qnet.work import collect_usage, current_session, in_session
from qguide.training.rollouts.usage import UpstreamUsage

PREFIX: Final = "upstream:"
_ADDRESS: Final = re.compile(r"https?://[^#\s]+#\S+")
_SCHEMES: Final = ("http://", "https://")
_LONGEST_WAIT_S: Final = 30.0
_PLAIN_QUESTION: Final = (Message("user", "Say hello."),)
_PLAIN_SAMPLING: Final = Sampling(temperature=0.0, max_tokens=16)
_SET_BY_JOBS: Final = frozenset({"model", "messages", "n", "stream", "stream_options"})


def _plain(url: HttpUrl) -> HttpUrl:
    if url.username or url.password or url.query or url.fragment:
        raise ValueError(
            "the address holds a user, a password, a query or a fragment, which config.json would "
            "show; name the variable that holds the key in api_key_variable"
        )
    return url


PlainUrl = Annotated[HttpUrl, AfterValidator(_plain)]
"""An address that may stand in a run's config.json."""


def _free(parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(_SET_BY_JOBS & parameters.keys()):
        raise ValueError(f"the job sets {', '.join(taken)} itself; leave them out")
    return parameters


class PatientUpstream(UpstreamSettings):
    """One model of an OpenAI-compatible server, for a job, which waits rather than fails.

    Attributes:
        api_key_variable: environment variable that holds the key; "" sends none.
        max_in_flight: maximum number of requests at the same time; for a policy `parallel` has to
            be as large.
        timeout_s: longest time without a byte from the upstream.
        patience_s: how long a request is retried while the upstream is unreachable, overloaded
            (429 with its `Retry-After`), failing (5xx) or silent. After that the task fails, and
            the run ends if the upstream of a policy does not answer a plain question either.
    """

    url: PlainUrl
    api_key_variable: str = Field(default="", pattern=r"^([A-Z_][A-Z0-9_]*)?$")
    max_in_flight: int = Field(default=64, ge=1)
    timeout_s: float = Field(default=600.0, gt=0)
    patience_s: float = Field(default=600.0, gt=0)

    @property
    def limits(self) -> UpstreamLimits:
        """Limits of a client that never stops asking by itself."""
        return UpstreamLimits(
            timeout_s=self.timeout_s,
            connect_timeout_s=self.connect_timeout_s,
            max_connections=self.max_in_flight,
            max_answer_bytes=self.max_answer_bytes,
            patience_s=self.patience_s,
            longest_wait_s=_LONGEST_WAIT_S,
            breaker_failures=sys.maxsize,
        )


class HostedModel(PatientUpstream):
    """An upstream of a job: one model of an OpenAI-compatible server.

    Attributes:
        max_tokens_in_flight: maximum number of tokens at the same time at each replica, as large as
            its KV cache; a request counts its prompt, estimated from the characters, and
            `max_tokens` for each candidate. A larger request is sent alone. None: no bound.
        instructions: system message of every request for an action, before the environment's own;
            rows do not hold it. A model that was not trained on the environment needs one that says
            how to reply, such as "Thought: …" and "Action: …" on lines of their own.
        parameters: further parameters of every request, for example `reasoning_effort`.
        omit: parameters that the upstream refuses, so that they are not sent.
    """

    max_tokens_in_flight: int | None = Field(default=None, ge=1)
    instructions: str = ""
    parameters: Annotated[dict[str, JsonValue], AfterValidator(_free)] = Field(default_factory=dict)
    omit: tuple[Literal["temperature", "max_tokens", "seed"], ...] = ()

    def history(self, history: History) -> History:
        """A state as this upstream gets it, the instructions included."""
        if not self.instructions:
            return history
        if not history or history[0].role != "system":
            return (Message("system", self.instructions), *history)
        both = f"{self.instructions}\n\n{history[0].content}"
        return (Message("system", both), *history[1:])

    def sampling(self, sampling: Sampling) -> Sampling:
        """A job's sampling as this upstream takes it."""
        unset: dict[str, Any] = dict.fromkeys(self.omit)
        if "temperature" in unset:
            unset["first_greedy"] = False
        parameters = {**self.parameters, **sampling.parameters}
        return replace(sampling, parameters=parameters, **unset)


Upstreams = dict[UpstreamName, HostedModel]

ROW_FIELDS: Final = ("model", "instructions", "parameters", "omit")
"""Fields of an upstream on which rows depend."""

UPSTREAMS_MAY_CHANGE: Final = frozenset(
    f"upstreams.*.{name}" for name in HostedModel.model_fields.keys() - set(ROW_FIELDS)
)
"""Fields of upstreams that a resumed run may change."""


def is_hosted(name: str) -> bool:
    """True if a job's name of a policy means a hosted one."""
    return name.startswith((PREFIX, *_SCHEMES))


def find_upstream(name: str, upstreams: Mapping[str, HostedModel]) -> tuple[str, HostedModel]:
    """The upstream that a policy's name means, and its name in messages."""
    if name.startswith(PREFIX):
        table = name.removeprefix(PREFIX)
        if table not in upstreams:
            known = ", ".join(f"{PREFIX}{each}" for each in sorted(upstreams)) or "none"
            raise ConfigError(f"{name}: there is no table [upstreams.{table}]; the job file has {known}")
        return table, upstreams[table]
    if not _ADDRESS.fullmatch(name):
        raise ConfigError(f"{without_secrets(name)} names no model; write http://HOST:PORT/v1#MODEL")
    url, _, model = name.partition("#")
    try:
        hosted = HostedModel(url=TypeAdapter(HttpUrl).validate_python(url), model=model)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{without_secrets(name)}: {reason}") from None
    return f"{hosted.url.host}:{hosted.url.port}", hosted


def require_upstream(name: str, upstreams: Mapping[str, HostedModel]) -> None:
    """Check, while a job's configuration is validated, that a hosted policy's upstream is there."""
    try:
        if is_hosted(name):
            find_upstream(name, upstreams)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def build_hosted_policy(name: str, upstreams: Mapping[str, HostedModel]) -> "HostedPolicy":
    """Build the hosted policy of that name; nothing is sent before the first draw."""
    upstream, hosted = find_upstream(name, upstreams)
    return HostedPolicy(upstream, hosted, api_key=read_key(f"upstream {upstream}", hosted.api_key_variable))


def read_key(owner: str, variable: str) -> SecretStr | None:
    """The key in an environment variable; None where no variable is named."""
    if not variable:
        return None
    if not (value := os.environ.get(variable)):
        raise ConfigError(
            f"{owner}: the environment variable {variable} is not set; export the key "
            "there, or remove api_key_variable if the server needs none"
        )
    try:
        key: SecretStr = TypeAdapter(ApiKey).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{owner}: {variable}: {reason}") from None
    return key


Draw = Callable[[SampleRequest, Callable[[UpstreamUsage], None]], Awaitable[list[Candidate]]]
"""Draws the candidates of one request, and tells what they cost, also if it fails."""


class HostedPolicy:
    """One model of an upstream, drawn from by many rollout tasks at the same time."""

    def __init__(self, upstream: str, hosted: HostedModel, *, api_key: SecretStr | None) -> None:
        self.name = hosted.model
        self.upstream = upstream
        self._hosted = hosted
        self._api_key = api_key

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Draw]:
        """Connections of one event loop, closed at the end."""
        hosted = self._hosted
        policy = OpenAICompatiblePolicy.of(self.upstream, hosted, self._api_key, hosted.limits)
        try:
            yield _Draws(policy, hosted)
        finally:
            await policy.close()


class _Draws:
    """Draws of one run, which tell a lost upstream from one bad request."""

    def __init__(self, policy: OpenAICompatiblePolicy, hosted: HostedModel) -> None:
        self._policy = policy
        self._hosted = hosted
        self._answered = 0
        self._budget = TokenBudget(hosted.max_tokens_in_flight or sys.maxsize)

    async def __call__(self, request: SampleRequest, spend: Callable[[UpstreamUsage], None]) -> list[Candidate]:
        """Draw, waiting where the upstream has to be waited for."""
        answered = self._answered
        # Instructions say how to act, and a reflection is no action.
        reflects = request.role == "reflect"
        history = request.history if reflects else self._hosted.history(request.history)
        sampling = self._hosted.sampling(request.sampling)
        with collect_usage() as spent:
            try:
                async with self._budget.hold(current_session(), self._tokens_of(request, history)):
                    drawn = await self._policy.sample(history, n=request.n, sampling=sampling)
                    for answer in spent:
                        self._budget.learn(current_session(), answer.replica)
            except UpstreamError as error:
                if self._answered == answered and not await self._answers_plainly(error):
                    raise UpstreamLostError(str(error)) from error
                raise
            finally:
                spend(UpstreamUsage.of(spent, self._hosted.prices))
        self._answered += 1
        return drawn

    def _tokens_of(self, request: SampleRequest, history: History) -> int:
        # The job's own limit, even where the upstream is not told; without one, all there is.
        max_tokens = request.sampling.max_tokens
        if max_tokens is None:
            return self._hosted.max_tokens_in_flight or 0
        return tokens_of(history, n=request.n, max_tokens=max_tokens)

    async def _answers_plainly(self, error: UpstreamError) -> bool:
        """True if the upstream answers a short question of no task's.

        Its list of models would say less: many show it without a key, and where the quota is used
        up or no model runs any more.
        """
        # After a failure that may pass, the upstream has had the whole patience already.
        patience_s = self._hosted.patience_s
        wait_s = min(patience_s, _LONGEST_WAIT_S) if error.retriable else patience_s
        sampling = self._hosted.sampling(_PLAIN_SAMPLING)
        try:
            async with asyncio.timeout(wait_s):
                with in_session(""):
                    await self._policy.sample(_PLAIN_QUESTION, n=1, sampling=sampling)
        except (UpstreamError, TimeoutError):
            return False
        except InvalidRequestError:  # refused for its content, by an upstream that works
            pass
        self._answered += 1
        return True
