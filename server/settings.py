"""What an operator configures; read once, from the environment (QGUIDE_…)."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

EMBEDDED: Final = "embedded"
SCRIPTED: Final = "scripted"
_ORIGIN: Final = re.compile(r"https?://[^/*\s]+")


class VllmTrunk(BaseModel):
    """Where a Q model's trunk runs, if not in this process.

    Attributes:
        url: root of the vLLM server.
        api_key: what it was started with, if with one.
        max_tokens: longest sequence; None takes all that the trunk can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: HttpUrl
    api_key: SecretStr | None = None
    max_tokens: int | None = Field(default=None, ge=1)


class Settings(BaseSettings):
    """Everything the server needs to start.

    Attributes:
        policy: "embedded", "scripted" (a fake for demos) or a checkpoint folder.
        q_models: `name` or `name@version` -> "embedded", "scripted" or a checkpoint folder; of
            several versions the name leads to the first. Where no version is given it is the
            first 12 digits of the manifest's sha256, which stands for all of the checkpoint.
        vllm_trunks: `name@version`, or a `name` for all of its versions -> the vLLM server that
            runs the trunk; head and tokenizer are those of the checkpoint in `q_models`.
        default_q_model: the one that a request gets which names none; "" takes the first.
        aliases: other name -> a Q model, or several and the share of the episodes of each.
        shadows: Q model's name -> another, which scores its requests a second time.
        models_dir: the folder whose folders may be loaded while the server runs; None: none.
        admin: serve the routes that load, drop and rename Q models. With keys they ask for an
            admin's; without, the server must be bound to this machine alone.
        keys_file: hashes and limits of the API keys (`qguide keys create`); None asks for none.
        insecure: bind to other addresses than loopback without keys.
        public_metrics: whether /metrics asks for no key; likewise `public_docs`.
        cors_origins: origins whose pages may call; none by default.
        requests_per_minute: of each key that has no limit of its own; 0 is no limit.
        tokens_per_day: likewise; tokens read, generated and computed.
        concurrent_requests: of each key at the same time; 0 is no limit.
        max_candidates: most candidates of one request.
        max_history_messages: most turns of one history; the model's context limits it, too.
        max_text_bytes: of a history, and of all candidates; what is longer is refused before its
            tokens are counted.
        max_body_bytes: a larger request body is refused with 413.
        max_waiting: requests that may wait for the device; one more is answered with 503.
        cache_bytes: keys and values that each model keeps between requests.
        timeout_s: a request that takes longer is answered with 503; a caller may want less.
        redis_url: where servers share limits and scores; None, or one that is gone: each has its
            own, in memory.
        score_cache_ttl_s: how long a Q model's answer is kept for the same question; 0: not.
        otlp_endpoint: a collector that takes traces over HTTP; needs the extra `otel`.
        drain_delay_s: how long SIGTERM keeps the door open, with a red light, before it closes.
        shutdown_timeout_s: how long the end waits for the requests in flight.
    """

    model_config = SettingsConfigDict(env_prefix="QGUIDE_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    policy: str = EMBEDDED
    q_models: dict[str, str] = Field(default_factory=lambda: {EMBEDDED: EMBEDDED}, min_length=1)
    vllm_trunks: dict[str, VllmTrunk] = Field(default_factory=dict)
    default_q_model: str = ""
    aliases: dict[str, str | dict[str, float]] = Field(default_factory=dict)
    shadows: dict[str, str] = Field(default_factory=dict)
    models_dir: Path | None = None
    admin: bool = False
    keys_file: Path | None = None
    insecure: bool = False
    public_metrics: bool = False
    public_docs: bool = False
    cors_origins: tuple[str, ...] = ()
    requests_per_minute: int = Field(default=0, ge=0)
    tokens_per_day: int = Field(default=0, ge=0)
    concurrent_requests: int = Field(default=64, ge=0)
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = Field(default=0, ge=0, description="torch threads; 0 leaves its own choice")
    max_candidates: int = Field(default=64, ge=1)
    max_history_messages: int = Field(default=1024, ge=1)
    max_text_bytes: int = Field(default=1_000_000, ge=1)
    max_body_bytes: int = Field(default=4 * 1024**2, ge=1024)
    max_waiting: int = Field(default=256, ge=1)
    max_batch: int = Field(default=16, ge=1)
    cache_bytes: int = Field(default=512 * 1024**2, ge=0)
    timeout_s: float = Field(default=60.0, gt=0)
    redis_url: SecretStr | None = None
    score_cache_ttl_s: float = Field(default=0.0, ge=0)
    otlp_endpoint: HttpUrl | None = None
    drain_delay_s: float = Field(default=2.0, ge=0)
    shutdown_timeout_s: int = Field(default=90, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_named(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; name each as https://host or :port too")
        return origins

    @model_validator(mode="after")
    def _others_need_keys(self) -> Self:
        if self.keys_file or _is_loopback(self.host):
            return self
        if self.admin:
            raise ValueError(
                f"admin is on and host is {self.host!r}; without keys the admin routes stay on "
                "this machine: set keys_file, bind to 127.0.0.1 or switch them off"
            )
        if not self.insecure:
            raise ValueError(
                f"host is {self.host!r}, where others can call, and there are no API keys; make "
                "one with `qguide keys create NAME --file keys.json` and set "
                "QGUIDE_KEYS_FILE=keys.json, bind to 127.0.0.1, or say --insecure"
            )
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
