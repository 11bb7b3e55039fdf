"""Settings of an upstream, the same in the server's settings and in job files."""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, HttpUrl, SecretStr

from qguide.qnet.policies.upstream_dialects import DIALECTS, DialectName, MaxTokensName
from qguide.qnet.work import Prices

UpstreamName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Limits of time, size and failures for one upstream.

    Attributes:
        timeout_s: longest silence of the upstream, between two pieces of an answer as well.
        connect_timeout_s: until a connection is made, or one of the pool is free.
        poll_timeout_s: longest silence during a health check.
        patience_s: time for which retries go on, however many there are, also after a timeout and
            any failure of the server's; for jobs, which wait rather than fail. None: `retries`.
        longest_wait_s: before a retry; if the upstream asks for a longer wait (with `patience_s`,
            for one longer than that) there is no retry.
        breaker_failures: in a row, after which nothing is sent for `breaker_open_s`.
    """

    timeout_s: float = 60.0
    connect_timeout_s: float = 5.0
    poll_timeout_s: float = 10.0
    max_connections: int = 100
    max_answer_bytes: int = 8 * 1024**2
    retries: int = 2
    patience_s: float | None = None
    longest_wait_s: float = 5.0
    breaker_failures: int = 5
    breaker_open_s: float = 10.0

    @property
    def is_patient(self) -> bool:
        """True for a job's limits: time is not pressing, and a failure costs an episode."""
        return self.patience_s is not None


DEFAULT_LIMITS: Final = UpstreamLimits()


def _fits_a_header(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]*", key.get_secret_value()):
        raise ValueError(
            "the key has a space, a control character or a character beyond ASCII, which an HTTP "
            "header cannot carry; copy it again"
        )
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_fits_a_header)]


class UpstreamSettings(BaseModel, frozen=True, extra="forbid"):
    """One model of an OpenAI-compatible server.

    Attributes:
        url: base URL as for an OpenAI client; the dialect's path is appended to it.
        model: the model's name at the upstream.
        n: `one_request` draws all candidates with one request (`n`); `parallel` sends one request per candidate.
        max_tokens_name: the parameter for the longest completion; OpenAI's reasoning models take
            `max_completion_tokens`.
        caches: it caches what comes before a breakpoint, as Anthropic does: candidates after the
            first wait until that one begins, and read a long prompt from the cache.
        prices: per million tokens, for what is told of the cost.
        connect_timeout_s: longest wait for a connection.
        max_answer_bytes: maximum size of an answer, compressed or decompressed; a larger one is aborted.
    """

    url: HttpUrl
    model: str = Field(min_length=1)
    dialect: DialectName = Field(
        default="chat",
        description="; ".join(
            f"`{one.name}` asks by {one.api} (/{one.placed(one.path, {'model': 'MODEL'})[0]})"
            + (", once per candidate" if not one.takes_n else "")
            for one in DIALECTS.values()
        ),
    )
    n: Literal["one_request", "parallel"] = "one_request"
    max_tokens_name: MaxTokensName = "max_tokens"
    caches: bool = False
    prices: Prices | None = None
    connect_timeout_s: float = Field(default=DEFAULT_LIMITS.connect_timeout_s, gt=0)
    max_answer_bytes: int = Field(default=DEFAULT_LIMITS.max_answer_bytes, ge=1024)
