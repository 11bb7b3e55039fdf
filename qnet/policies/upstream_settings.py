"""Settings of an upstream, the same in the server's settings and in job files."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, SecretStr

from qguide.qnet.native import DialectName
from qguide.qnet.policies.dialect import MaxTokensName
from qguide.qnet.policies.openai_compatible import UpstreamLimits
from qguide.qnet.usage import Prices

UpstreamName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
DEFAULT_LIMITS: Final = UpstreamLimits()


def _fits_a_header(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]*", key.get_secret_value()):
        raise ValueError(
            "the key has a space, a control character or a character beyond ASCII, which an HTTP "
            "header cannot carry; copy it again"
        )
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_fits_a_header)]


class UpstreamSettings(BaseModel):
    """One model of an OpenAI-compatible server.

    Attributes:
        url: base URL as for an OpenAI client; the dialect's path (/chat/completions, /responses,
            /messages) is appended to it.
        model: the model's name at the upstream.
        dialect: `chat` asks by chat completions, which most servers know; `responses` by OpenAI's
            Responses API; `messages` by Anthropic's Messages API. The last two send one request per
            candidate.
        n: `one_request` draws all candidates with one request (`n`); `parallel` sends one request
            per candidate.
        max_tokens_name: the parameter for the longest completion; OpenAI's reasoning models take
            `max_completion_tokens`.
        prices: per million tokens, for what is told of the cost.
        connect_timeout_s: longest wait for a connection.
        max_answer_bytes: maximum size of an answer, compressed or decompressed; a larger one is
            aborted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: HttpUrl
    model: str = Field(min_length=1)
    dialect: DialectName = "chat"
    n: Literal["one_request", "parallel"] = "one_request"
    max_tokens_name: MaxTokensName = "max_tokens"
    prices: Prices | None = None
    connect_timeout_s: float = Field(default=DEFAULT_LIMITS.connect_timeout_s, gt=0)
    max_answer_bytes: int = Field(default=DEFAULT_LIMITS.max_answer_bytes, ge=1024)
