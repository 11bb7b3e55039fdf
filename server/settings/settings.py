"""What an operator configures; read once, from the environment (QGUIDE_…)."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from qnet.decision.perturbation import DEFAULT_MAX_TOKENS
from qnet.policies.openai_compatible import UpstreamLimits
from qnet.policies.openai_schema import MaxTokensName
from qnet.records import MAX_REWARD
from qnet.types import TaskMarker

EMBEDDED: Final = "embedded"
SCRIPTED: Final = "scripted"
DEFAULT_POLICY: Final = "default"
VLLM: Final = "vllm"

UpstreamName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
_PATIENCE: Final = UpstreamLimits()
_HOST: Final = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ORIGIN: Final = re.compile(r"https?://[^/*\s]+")


def _fits_a_header(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]*", key.get_secret_value()):
        raise ValueError(
            "the key has a space or a character beyond ASCII, which no header can carry; copy it "
            "again"
        )
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_fits_a_header)]


class VllmTrunk(BaseModel):
    """Where a Q model's trunk runs, if not in this process.

    Attributes:
        url: root of the vLLM server.
        api_key: what it was started with, if with one.
        max_tokens: longest sequence; None takes all that the trunk can.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: HttpUrl
    api_key: ApiKey | None = None
    max_tokens: int | None = Field(default=None, ge=1)


class Upstream(BaseModel):
    """An OpenAI-compatible server whose model is served as a policy.

    Attributes:
        url: base URL, as an OpenAI client's; /chat/completions is appended to it.
        model: the model's name there.
        api_key: the key to send, if it needs one.
        n: whether one request may draw several candidates; `parallel` sends one for each.
        max_tokens_name: its name for the longest completion; reasoning models of OpenAI's take
            `max_completion_tokens`.
        cache_salt: send with each request whose cached prefixes it may use; vLLM takes the
            parameter, most others refuse it.
        timeout_s: longest silence; without it nine tenths of the time for a decision.
        connect_timeout_s: longest wait for a connection.
        max_connections: at once; with `parallel` every candidate needs one.
        max_answer_bytes: a larger answer, compressed or not, is given up.
        retries: of requests that failed without harm (no connection, 429, 502, 503, 504).
        breaker_failures: failures in a row after which nothing is sent for `breaker_open_s`.
        breaker_open_s: how long nothing is sent then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: HttpUrl
    model: str = Field(min_length=1)
    api_key: ApiKey | None = None
    n: Literal["one_request", "parallel"] = "one_request"
    max_tokens_name: MaxTokensName = "max_tokens"
    cache_salt: bool = False
    timeout_s: float | None = Field(default=None, gt=0)
    connect_timeout_s: float = Field(default=_PATIENCE.connect_timeout_s, gt=0)
    max_connections: int = Field(default=_PATIENCE.max_connections, ge=1)
    max_answer_bytes: int = Field(default=_PATIENCE.max_answer_bytes, ge=1024)
    retries: int = Field(default=_PATIENCE.retries, ge=0)
    breaker_failures: int = Field(default=_PATIENCE.breaker_failures, ge=1)
    breaker_open_s: float = Field(default=_PATIENCE.breaker_open_s, gt=0)


class Settings(BaseSettings):
    """Everything the server needs to start.

    Attributes:
        host: address to bind; another than loopback needs API keys or `insecure`.
        port: port to bind; 0 takes a free one.
        policy: what draws candidates: "embedded", "scripted" (a fake for demos), a checkpoint
            folder, any causal language model as a Hugging Face folder, or the name of an upstream.
        upstreams: name -> the OpenAI-compatible server behind it; a request may name each.
        vllm: a model that vLLM serves as a child process; it is then the upstream `vllm`.
        vllm_python: the interpreter that has vLLM.
        vllm_arguments: more of vLLM's options.
        vllm_environment: names of variables that vLLM gets besides those that it is known to read;
            `HF_TOKEN` for a gated model, say. Nothing else of this server's environment is passed.
        vllm_ready_s: longest start.
        vllm_silent_s: a vLLM that lives but does not answer for longer is started again.
        q_models: `name` or `name@version` -> "embedded", "scripted" or a checkpoint folder. A
            plain name leads to the first of its versions. Without a version it is the first 12
            digits of the manifest's sha256, which stands for the whole checkpoint.
        vllm_trunks: `name@version`, or a `name` for all of its versions -> the vLLM server that
            runs the trunk; head and tokenizer are those of the checkpoint in `q_models`.
        default_q_model: the Q model of requests that name none; "" takes the first.
        aliases: other name -> a Q model, or several with the share of episodes of each.
        shadows: Q model's name -> another Q model that scores its requests a second time.
        models_dir: the folder whose folders may be loaded while the server runs.
        paraphraser: what rewords tasks, named like `policy`; without it `perturb` is refused.
        task_markers: what stands before and after the task in a first user message, for `perturb`,
            such as `[{"opening": "Instruction: [SEP]", "end": "[SEP]"}]`; they come before those of
            the policy's checkpoint. Without any the whole message is the task.
        paraphrase_max_tokens: longest paraphrase; 0 is the policy's own limit, which reasoning
            models need, because their thoughts count too.
        adaptive_batch: candidates drawn at a time if a request asks for adaptive M.
        replica: this replica's name in `X-QGuide-Replica`, for a proxy that keeps an episode on
            the replica that has it cached.
        episodes_dir: where ended episodes are written; without it no text of them is kept.
        episodes_redact: `module:function` of the operator's, from a text to what may be written.
        episodes_redact_timeout_s: time for the texts of one episode; one that takes longer is not
            recorded.
        episodes_file_bytes: size at which a new file of episodes is begun.
        episodes_max_files: most files of each kind; the oldest is removed.
        episodes_memory_bytes: memory of all open episodes, in this process and in Redis alike;
            beyond it the key that holds most loses the one untouched for longest.
        episodes_ttl_s: an episode without a step for longer is forgotten.
        min_reward: least reward of an outcome; `qguide label` has the same bounds.
        max_reward: greatest reward of an outcome.
        admin: serve the routes that load, drop and rename Q models. With keys they need an
            admin's; without keys the server must be bound to loopback.
        keys_file: hashes and limits of the API keys (`qguide keys create`); without it no key is
            needed.
        insecure: allow other addresses than loopback without keys.
        playground: serve the page at /playground; the page needs no key, its requests do.
        public_metrics: whether /metrics needs no key.
        public_docs: whether /docs and /openapi.json need no key.
        cors_origins: origins whose pages may call.
        requests_per_minute: limit of each key without one of its own; 0 is no limit.
        tokens_per_day: likewise for tokens that were read, generated and computed.
        concurrent_requests: of each key at the same time, in this server; 0 is no limit.
        device: "cpu", "cuda", "cuda:1" and so on, for the models in this process.
        dtype: of weights and activations.
        threads: torch's threads; 0 leaves its own choice.
        num_candidates: M of a chat completion that does not say.
        max_candidates: most candidates of one request.
        max_score_items: most histories of one batch to score.
        fallback: what happens if no Q can be given: an error, or the first candidate.
        heartbeat_s: time between the comments of a stream that waits.
        max_history_messages: most turns of one history; the model's context limits it too.
        max_text_bytes: of a history, and of all candidates; a longer one is refused before its
            tokens are counted.
        trusted_hosts: names that a request's Host may have besides localhost and IP addresses;
            "*" takes any. With keys all are taken while none is named here.
        max_body_bytes: a larger request body is refused with 413.
        body_timeout_s: a body that takes longer to come is refused with 408; an answer of which
            the client takes nothing for as long is given up.
        head_timeout_s: from the opening of a connection, or the first byte of a later request, to
            the end of the request's head.
        keep_alive_s: how long a connection may stay open between two requests.
        max_header_bytes: of the request line and the headers; more are refused with 431.
        max_headers: likewise.
        max_connections_per_address: open at once; behind a proxy all have the proxy's address.
        max_connections: of all addresses.
        max_waiting: requests that may wait for the device; one more is answered with 503.
        max_batch: most requests that go through the device together.
        max_batch_tokens: tokens of one forward pass, after which other keys have their turn at the
            device, and new tokens that are scored together, estimated from the texts. 0 is 128 on a
            CPU, where longer passes are no faster, and 2048 elsewhere.
        cache_bytes: keys and values that each model keeps between requests.
        timeout_s: a decision that takes longer is answered with 503; a caller may ask for less.
        redis_url: where replicas share limits, scores, paraphrases and episodes (with their texts
            if those are recorded); without it, or while it is down, each has its own in memory.
        score_cache_ttl_s: how long a Q model's answer to the same question is kept; 0 is off.
        otlp_endpoint: a collector that takes traces over HTTP; needs the extra `otel`.
        drain_delay_s: how long the server still takes requests after SIGTERM, with a red /readyz.
        shutdown_timeout_s: how long the end waits for the requests in flight.
        log_level: of the JSON lines on stderr; they never hold prompts, and messages of
            exceptions only at DEBUG.
    """

    model_config = SettingsConfigDict(env_prefix="QGUIDE_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    policy: str = EMBEDDED
    upstreams: dict[UpstreamName, Upstream] = Field(default_factory=dict)
    vllm: str = ""
    vllm_python: Path = Path(".venv-vllm/bin/python")
    vllm_arguments: tuple[str, ...] = ()
    vllm_environment: tuple[str, ...] = ()
    vllm_ready_s: float = Field(default=1800.0, gt=0)
    vllm_silent_s: float = Field(default=60.0, gt=0)
    q_models: dict[str, str] = Field(default_factory=lambda: {EMBEDDED: EMBEDDED}, min_length=1)
    vllm_trunks: dict[str, VllmTrunk] = Field(default_factory=dict)
    paraphraser: str = ""
    task_markers: tuple[TaskMarker, ...] = ()
    paraphrase_max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=0)
    adaptive_batch: int = Field(default=2, ge=1)
    replica: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    episodes_dir: Path | None = None
    episodes_redact: str = Field(default="", pattern=r"^([\w.]+:\w+)?$")
    episodes_redact_timeout_s: float = Field(default=5.0, gt=0)
    episodes_file_bytes: int = Field(default=64 * 1024**2, ge=1)
    episodes_max_files: int = Field(default=16, ge=1)
    episodes_memory_bytes: int = Field(default=256 * 1024**2, ge=0)
    episodes_ttl_s: float = Field(default=6 * 3600.0, gt=0)
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)
    default_q_model: str = ""
    aliases: dict[str, str | dict[str, float]] = Field(default_factory=dict)
    shadows: dict[str, str] = Field(default_factory=dict)
    models_dir: Path | None = None
    admin: bool = False
    keys_file: Path | None = None
    insecure: bool = False
    playground: bool = True
    public_metrics: bool = False
    public_docs: bool = False
    cors_origins: tuple[str, ...] = ()
    requests_per_minute: int = Field(default=0, ge=0)
    tokens_per_day: int = Field(default=0, ge=0)
    concurrent_requests: int = Field(default=64, ge=0)
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = Field(default=0, ge=0)
    num_candidates: int = Field(default=5, ge=1)
    max_candidates: int = Field(default=64, ge=1)
    max_score_items: int = Field(default=64, ge=1)
    fallback: Literal["error", "first"] = "error"
    heartbeat_s: float = Field(default=5.0, gt=0)
    max_history_messages: int = Field(default=1024, ge=1)
    max_text_bytes: int = Field(default=1_000_000, ge=1)
    trusted_hosts: tuple[str, ...] = ()
    max_body_bytes: int = Field(default=4 * 1024**2, ge=1024)
    body_timeout_s: float = Field(default=30.0, gt=0)
    head_timeout_s: float = Field(default=10.0, gt=0)
    keep_alive_s: float = Field(default=5.0, gt=0)
    max_header_bytes: int = Field(default=32 * 1024, ge=1024)
    max_headers: int = Field(default=100, ge=1)
    max_connections_per_address: int = Field(default=512, ge=1)
    max_connections: int = Field(default=2048, ge=1)
    max_waiting: int = Field(default=256, ge=1)
    max_batch: int = Field(default=16, ge=1)
    max_batch_tokens: int = Field(default=0, ge=0)
    cache_bytes: int = Field(default=512 * 1024**2, ge=0)
    timeout_s: float = Field(default=60.0, gt=0)
    redis_url: SecretStr | None = None
    score_cache_ttl_s: float = Field(default=0.0, ge=0)
    otlp_endpoint: HttpUrl | None = None
    drain_delay_s: float = Field(default=2.0, ge=0)
    shutdown_timeout_s: int = Field(default=90, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def tokens_per_forward(self) -> int:
        """`max_batch_tokens`, or what suits the device."""
        return self.max_batch_tokens or (128 if self.device == "cpu" else 2048)

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_named(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; name each as https://host or :port too")
        return origins

    @field_validator("trusted_hosts")
    @classmethod
    def _hosts_are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host's name; leave out scheme, port and path")
        return hosts

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

    @model_validator(mode="after")
    def _names_are_one_policys(self) -> Self:
        if self.vllm and VLLM in self.upstreams:
            raise ValueError("an upstream is called 'vllm', and so is the one to be started")
        for name in {EMBEDDED, SCRIPTED, DEFAULT_POLICY} & set(self.upstreams):
            raise ValueError(f"an upstream is called {name!r}, which means something else here")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
