"""Server settings, read once from the environment (QGUIDE_…)."""

import os
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, HttpUrl, SecretStr, field_validator, model_validator

from qguide.qnet.decision.decision import Fallback
from qguide.qnet.decision.history_window import LongHistory
from qguide.qnet.decision.perturbation import DEFAULT_MAX_TOKENS
from qguide.qnet.decision.selection import PriorBy, SelectionName
from qguide.qnet.judging.settings import JudgeSettings
from qguide.qnet.memory_limits import total_bytes
from qguide.qnet.policies.upstream_dialects import DIALECTS
from qguide.qnet.policies.upstream_settings import UpstreamName
from qguide.qnet.records import MAX_REWARD
from qguide.qnet.types import TaskMarker
from qguide.server.settings.addresses import HostName, Origin, is_loopback
from qguide.server.settings.allowed_content import Reach
from qguide.server.settings.learning import LearningSettings
from qguide.server.settings.outcome_rules import OutcomeRule
from qguide.server.settings.remote_models import Classifier, Upstream, VllmTrunk
from qguide.server.settings.thresholds import ThresholdSettings

EMBEDDED: Final = "embedded"
SCRIPTED: Final = "scripted"
NONE: Final = "none"
DEFAULT_POLICY: Final = "default"
UnknownModels = Literal["only", "default", "error"]
PassedOn = Literal["embeddings", "files", "batches"]
VLLM: Final = "vllm"
_MOST_CACHE_BYTES: Final = 512 * 1024**2
_PART_OF_MEMORY: Final = 8


class Settings(LearningSettings):
    """Everything the server needs to start.

    Attributes:
        host: address to bind; any address but loopback needs API keys or `insecure`.
        port: port to bind; 0 picks a free one.
        policy: the policy that draws candidates: "embedded", "scripted" (a fake for demos), a checkpoint folder, a
            Hugging Face folder or hub name of any causal language model, or the name of an upstream.
        upstreams: name -> an OpenAI-compatible server; requests may select it by this name.
        vllm: a model to serve with vLLM in a child process; it becomes the upstream `vllm`.
        vllm_python: Python interpreter that has vLLM installed.
        vllm_arguments: additional command-line options for vLLM.
        vllm_environment: environment variables to pass to vLLM besides those it is known to read, for example
            `HF_TOKEN` for a gated model. No other variable of this server is passed.
        vllm_ready_s: longest time for vLLM to start.
        vllm_silent_s: vLLM is restarted if it does not answer health checks for this long.
        q_models: `name` or `name@version` -> "embedded", "scripted", a checkpoint folder, a Hugging Face folder or hub
            name of any sequence classifier with one label, "judge:UPSTREAM" for a chat model that is prompted for
            scores, "package.module:NAME" for a scorer of your own code, the name of one that an installed package
            brings (`qguide.scorers`), or "none" for unguided steps. The rules "votes", "likelihood" and "validity" need
            no model; they stand alone or before another, as in "validity+votes" and "validity+judge:UPSTREAM". Without
            any, the embedded policy has the embedded Q model, and every other policy none. A name without a version
            selects the first version listed. The default version is the first 12 digits of the SHA-256 of the
            checkpoint's manifest, which identifies the checkpoint; a judge's begins with `judge-`.
        unknown_models: chat clients and rerankers that insist on another service's names of models get: with "only" the
            one that is served, and 404 where there are several; with "default" the default; with "error" 404. The
            header `X-QGuide-Model` names what served.
        vllm_trunks: `name@version`, or `name` for all of its versions -> the vLLM server that runs the trunk; value
            head and tokenizer come from the checkpoint in `q_models`.
        classifiers: `name@version`, or `name` for all of its versions -> the server with vLLM's /classify that runs
            this Q model; configuration and tokenizer come from the folder in `q_models`, which needs no weights.
        judges: `name@version`, or `name` for all of its versions -> how this judge of `q_models` is asked, and its
            budget.
        caller_fields: what callers may send to upstreams besides what every caller may: names of parameters, and of
            fields and types of content parts, such as `["priority", "file_id"]`.
        caller_media_domains: hosts of images, videos and audio whose addresses callers may send to upstreams, which
            fetch them; "*" is any. Without any, only `data:` URLs pass.
        pass_through: `embeddings`, `files` or `batches` -> the upstream to which these requests go on as they are.
            Files and batches lie in the account of its key: every caller sees all.
        thresholds: `name@version`, or `name` for all of its versions -> what is done where the best Q of a step is
            below a threshold.
        default_q_model: the Q model of requests that name none; "" is the first one listed.
        aliases: alias -> a Q model, or several with the share of episodes for each.
        shadows: Q model -> a second one that scores its requests, too, without effect on answers.
        models_dir: folder whose subfolders may be loaded as Q models while the server runs.
        paraphraser: the policy that rewords tasks, named like `policy`; without it requests with `perturb` are refused.
        task_markers: text before and after the task in the first user message, for `perturb`, such as `[{"opening":
            "Instruction: [SEP]", "end": "[SEP]"}]`; they take precedence over those of the policy's checkpoint. Without
            any, the whole message is the task.
        paraphrase_max_tokens: maximum tokens of a paraphrase; 0 is the policy's own limit, which reasoning models need
            because their reasoning counts too.
        adaptive: draw with adaptive M in all steps of an episode whose requests do not say otherwise, for agents that
            can only set a URL or a header.
        adaptive_batch: candidates drawn at a time for requests with adaptive M, or until decided.
        replica: name of this replica in `X-QGuide-Replica`, for a proxy that keeps episodes on it.
        episodes_dir: folder for the records of finished episodes; without it none are recorded.
        episodes_redact: `module:function` that maps each text to the text that may be recorded.
        episodes_redact_timeout_s: time limit of a redaction; an episode beyond it is not recorded.
        episodes_file_bytes: size at which a new file of episodes is started.
        episodes_max_files: maximum number of files of each kind; the oldest is deleted.
        episodes_memory_bytes: memory for all open episodes, in this process and in Redis alike; when it is full, the
            least recently used episode of the key that holds most is dropped.
        episode_max_bytes: maximum size of what is kept of one episode to record it, its candidates included; at this
            size its next step is refused.
        episode_max_steps: likewise the maximum number of its steps.
        episodes_ttl_s: an episode without a step for this long is dropped.
        responses_ttl_s: how long responses are stored for requests that continue them (`previous_response_id`), unless
            they say `store: false`; 0 stores none.
        responses_memory_bytes: memory for stored responses without Redis, and as much again for those of open
            WebSockets; the oldest of the key that holds most go first.
        outcome_rules: end an episode by what its steps read, for agents that post no outcome.
        min_reward: least reward of an outcome; `qguide label` has the same bounds.
        max_reward: greatest reward of an outcome.
        admin: serve the routes that load, unload and rename Q models, and those that list recorded episodes: to admin
            keys or, without keys, on loopback alone.
        keys_file: hashes and limits of API keys (`qguide keys create`); without it none is needed.
        insecure: allow addresses other than loopback without API keys.
        unlicensed: serve Q models whose manifest grants no licence, because they were not shown to be above the agent's
            own choice.
        playground: serve the page at /playground; the page needs no key, its requests do.
        playground_games: the `[environment]` table of the games that the page plays; with the embedded policy it is
            `{"name": "alfworld"}`, generated games that no training of the embedded models has played. With other
            policies there are none by default.
        public_metrics: serve /metrics without an API key; they name all keys and groups.
        admin_metrics: serve /metrics to admin keys and those made with `--metrics` alone. Without it another key reads
            the page without the series of other keys and groups.
        public_docs: serve /docs and /openapi.json without an API key.
        cors_origins: origins whose web pages may call the server.
        requests_per_minute: limit for each key that has none of its own; 0 is no limit.
        tokens_per_day: likewise for tokens read, generated and scored.
        concurrent_requests: maximum concurrent requests of each key in this process; 0 is no limit.
        device: "cpu", "cuda", "cuda:1" and so on, for the models in this process.
        dtype: data type of weights and activations.
        full_sequences: run Q models whose architecture can neither be packed nor go on from a kept state on full
            sequences, which costs the whole history at every step; false refuses them.
        threads: number of torch threads; 0 is torch's default.
        num_candidates: default M of a chat completion.
        guidance_temperature: temperature of all candidates but the first where the request's is 0, at which they would
            be equal; 0 draws only as many as the caller gets back, unguided.
        max_candidates: maximum number of candidates per request.
        max_score_items: maximum number of histories in one batch to score.
        selection: "argmax" chooses the candidate of highest Q, "posterior" that of highest Q / tau + log prior; null is
            "posterior" for a Q model whose manifest has a fitted tau, and "argmax" for any other. Requests may choose
            another.
        tau: temperature of Q in the posterior; null is the Q model's fitted one, or 0.05.
        prior: source of the prior: "votes", "likelihood" or "likelihood-per-token"; null is what the Q model was fitted
            with, or votes.
        fallback: answer if no Q is available: an error, or with "first" the likeliest candidate: the one drawn most
            often, of equal ones the first. The default is "first" for candidates of an upstream and "error" for those
            of a policy in this process.
        out_of_domain: answer to a state of another kind than the Q model was trained on: "unguided" takes the likeliest
            candidate, "guide" that of the Q model.
        least_read: share of a long history's tokens that a window has to read; a state of which less is read is out of
            the Q model's domain, too.
        long_history: answer if a history is longer than the Q model takes: "error", "first" for the likeliest
            candidate, or "window" to score after the task and the newest turns that fit. Without it `fallback` decides;
            if neither is set, it is "window" for candidates of an upstream. Where no window fits, `fallback` decides.
        heartbeat_s: time between the keep-alive comments of a stream that is waiting.
        max_history_messages: maximum number of messages in a history; the model's context limits it too.
        max_text_bytes: maximum size of a history, and of all candidates together; a larger one is refused before it is
            tokenised.
        trusted_hosts: names accepted in the Host header besides localhost and IP addresses; "*" accepts any. With API
            keys and none named here, any is accepted.
        max_body_bytes: maximum size of a request body; a larger one is refused with 413.
        body_timeout_s: a body that takes longer to arrive is refused with 408; a connection whose client reads nothing
            of an answer for this long is closed.
        head_timeout_s: longest time from opening a connection, or from the first byte of a later request, to the end of
            the request's head.
        keep_alive_s: how long an idle connection is kept open between requests.
        max_header_bytes: maximum size of request line and headers; more is refused with 431.
        max_headers: maximum number of headers; more are refused with 431.
        max_connections_per_address: maximum open connections per client address; behind a proxy all clients share the
            proxy's address.
        max_connections: maximum open connections in all.
        websockets_per_key: maximum open WebSockets of each key at /v1/responses in this process; 0 opens none, so that
            Codex goes on over HTTP.
        websocket_idle_s: a WebSocket without an event for this long is closed.
        read_ahead: let Q models in this process read a history while an upstream draws, whenever no request waits for
            the device, so that only the candidates are left when they arrive.
        max_waiting: maximum queue length for the device; further requests are answered with 503.
        max_batch: maximum number of requests in one batch on the device.
        max_batch_tokens: maximum tokens of one forward pass, between which other keys get their turn at the device, and
            maximum new tokens scored together, estimated from the texts. 0 is 128 on a CPU, where longer passes are no
            faster, and 2048 elsewhere.
        cache_bytes: size of each model's prefix cache (keys and values kept between requests). On a CPU a policy copies
            histories side by side while it draws; up to half of it is for these copies. Without it 512 MiB, or an
            eighth of the memory of the machine, or of its container, if that is less.
        timeout_s: a decision that takes longer is answered with 503; a request may ask for less.
        idle_timeout_s: longest time without a byte from an upstream that has no `timeout_s`.
        redis_url: Redis in which replicas share limits, scores, paraphrases and episodes (with their texts if episodes
            are recorded); without it, or while it is down, each replica keeps its own in memory.
        score_cache_ttl_s: how long scores are cached for identical requests; 0 is off.
        otlp_endpoint: OTLP/HTTP collector for traces; needs the extra `otel`.
        drain_delay_s: time after SIGTERM during which requests are still accepted while /readyz already fails.
        shutdown_timeout_s: how long shutdown waits for requests in flight.
        log_level: level of the JSON lines on stderr; they never hold prompts, and messages of exceptions only at DEBUG.
    """

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
    q_models: dict[str, str] = Field(default_factory=dict)
    unknown_models: UnknownModels = "only"
    vllm_trunks: dict[str, VllmTrunk] = Field(default_factory=dict)
    classifiers: dict[str, Classifier] = Field(default_factory=dict)
    judges: dict[str, JudgeSettings] = Field(default_factory=dict)
    caller_fields: tuple[str, ...] = ()
    caller_media_domains: tuple[HostName, ...] = ()
    pass_through: dict[PassedOn, str] = Field(default_factory=dict)
    thresholds: dict[str, ThresholdSettings] = Field(default_factory=dict)
    paraphraser: str = ""
    task_markers: tuple[TaskMarker, ...] = ()
    paraphrase_max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=0)
    adaptive: bool = False
    adaptive_batch: int = Field(default=2, ge=1)
    replica: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    episodes_dir: Path | None = None
    episodes_redact: str = Field(default="", pattern=r"^([\w.]+:\w+)?$")
    episodes_redact_timeout_s: float = Field(default=5.0, gt=0)
    episodes_file_bytes: int = Field(default=64 * 1024**2, ge=1)
    episodes_max_files: int = Field(default=16, ge=1)
    episodes_memory_bytes: int = Field(default=256 * 1024**2, ge=0)
    episode_max_bytes: int = Field(default=16 * 1024**2, ge=1)
    episode_max_steps: int = Field(default=2000, ge=1)
    episodes_ttl_s: float = Field(default=6 * 3600.0, gt=0)
    responses_ttl_s: float = Field(default=24 * 3600.0, ge=0)
    responses_memory_bytes: int = Field(default=256 * 1024**2, ge=1)
    outcome_rules: tuple[OutcomeRule, ...] = ()
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)
    default_q_model: str = ""
    aliases: dict[str, str | dict[str, float]] = Field(default_factory=dict)
    shadows: dict[str, str] = Field(default_factory=dict)
    models_dir: Path | None = None
    admin: bool = False
    keys_file: Path | None = None
    insecure: bool = False
    unlicensed: bool = False
    playground: bool = True
    playground_games: dict[str, str | int | bool] = Field(default_factory=dict)
    public_metrics: bool = False
    admin_metrics: bool = False
    public_docs: bool = False
    cors_origins: tuple[Origin, ...] = ()
    requests_per_minute: int = Field(default=0, ge=0)
    tokens_per_day: int = Field(default=0, ge=0)
    concurrent_requests: int = Field(default=64, ge=0)
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    full_sequences: bool = False
    threads: int = Field(default=0, ge=0)
    num_candidates: int = Field(default=5, ge=1)
    guidance_temperature: float = Field(default=0.7, ge=0, le=5)
    max_candidates: int = Field(default=64, ge=1)
    max_score_items: int = Field(default=64, ge=1)
    selection: SelectionName | None = None
    tau: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    prior: PriorBy | None = None
    fallback: Fallback | None = None
    long_history: LongHistory | None = None
    out_of_domain: Literal["unguided", "guide"] = "unguided"
    least_read: float = Field(default=0.1, ge=0, le=1)
    heartbeat_s: float = Field(default=5.0, gt=0)
    max_history_messages: int = Field(default=16_384, ge=1)
    max_text_bytes: int = Field(default=8_000_000, ge=1)
    trusted_hosts: tuple[HostName, ...] = ()
    max_body_bytes: int = Field(default=32 * 1024**2, ge=1024)
    body_timeout_s: float = Field(default=30.0, gt=0)
    head_timeout_s: float = Field(default=10.0, gt=0)
    keep_alive_s: float = Field(default=5.0, gt=0)
    max_header_bytes: int = Field(default=32 * 1024, ge=1024)
    max_headers: int = Field(default=100, ge=1)
    max_connections_per_address: int = Field(default=512, ge=1)
    max_connections: int = Field(default=2048, ge=1)
    websockets_per_key: int = Field(default=32, ge=0)
    websocket_idle_s: float = Field(default=900.0, gt=0)
    read_ahead: bool = True
    max_waiting: int = Field(default=256, ge=1)
    max_batch: int = Field(default=16, ge=1)
    max_batch_tokens: int = Field(default=0, ge=0)
    cache_bytes: int | None = Field(default=None, ge=0)
    timeout_s: float = Field(default=900.0, gt=0)
    idle_timeout_s: float = Field(default=60.0, gt=0)
    redis_url: SecretStr | None = None
    score_cache_ttl_s: float = Field(default=0.0, ge=0)
    otlp_endpoint: HttpUrl | None = None
    drain_delay_s: float = Field(default=2.0, ge=0)
    shutdown_timeout_s: int = Field(default=90, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def episodes_folder(self) -> Path | None:
        """`episodes_dir`, or where episodes are recorded to be learned from."""
        if self.episodes_dir is not None or not self.learn:
            return self.episodes_dir
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        return Path(data) / "qguide" / "episodes"

    @property
    def served_q_models(self) -> dict[str, str]:
        """`q_models`, or what is served where none is named."""
        if self.q_models:
            return self.q_models
        own = {EMBEDDED: EMBEDDED} if self.policy == EMBEDDED else {}
        return own if own and not self.upstreams else own | {NONE: NONE}

    @property
    def most_cache_bytes(self) -> int:
        """`cache_bytes`, or the default for the memory."""
        if self.cache_bytes is not None:
            return self.cache_bytes
        return min(_MOST_CACHE_BYTES, total_bytes() // _PART_OF_MEMORY)

    @property
    def tokens_per_forward(self) -> int:
        """`max_batch_tokens`, or the default for the device."""
        return self.max_batch_tokens or (128 if self.device == "cpu" else 2048)

    @field_validator("log_level", mode="before")
    @classmethod
    def _level_in_capitals(cls, level: object) -> object:
        return level.upper() if isinstance(level, str) else level

    @property
    def reach(self) -> Reach:
        """Addresses and files that callers may make an upstream fetch or open."""
        hosts = frozenset(host.lower() for host in self.caller_media_domains)
        return Reach(hosts, self.caller_fields)

    @model_validator(mode="after")
    def _rules_are_within_rewards(self) -> Self:
        greatest = max((rule.greatest for rule in self.outcome_rules), default=0.0)
        if greatest > self.max_reward:
            raise ValueError(
                f"outcome_rules has an outcome of {greatest:g}, and max_reward is {self.max_reward:g}; lower the one "
                "or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _others_need_keys(self) -> Self:
        if self.keys_file or is_loopback(self.host):
            return self
        if self.admin:
            raise ValueError(
                f"admin is on and host is {self.host!r}; without API keys the admin routes may only be served on "
                "loopback: set keys_file, bind to 127.0.0.1 or turn admin off"
            )
        if not self.insecure:
            raise ValueError(
                f"host is {self.host!r}, which other machines can reach, and there are no API keys; create one with "
                "`qguide keys create NAME --file keys.json` and set QGUIDE_KEYS_FILE=keys.json, bind to 127.0.0.1, or "
                "pass --insecure"
            )
        return self

    @model_validator(mode="after")
    def _metrics_are_public_or_not(self) -> Self:
        if self.public_metrics and self.admin_metrics:
            raise ValueError("public_metrics and admin_metrics are both set; unset one of them")
        if self.admin_metrics and not self.keys_file:
            raise ValueError("admin_metrics is set, and without API keys anybody is an admin; set keys_file")
        return self

    @model_validator(mode="after")
    def _passed_on_to_upstreams(self) -> Self:
        for kind, name in self.pass_through.items():
            if name not in self.upstreams:
                raise ValueError(
                    f"pass_through sends {kind} to {name!r}, which is no upstream; name one of "
                    f"{', '.join(self.upstreams) or 'none, so add it to upstreams'}"
                )
            if not DIALECTS[dialect := self.upstreams[name].dialect].beside_chats:
                raise ValueError(
                    f"pass_through sends {kind} to {name!r}, whose dialect is {dialect!r} and has no such routes; name "
                    f"an upstream of {' or '.join(repr(one.name) for one in DIALECTS.values() if one.beside_chats)}"
                )
        return self

    @model_validator(mode="after")
    def _names_are_one_policys(self) -> Self:
        if self.vllm and VLLM in self.upstreams:
            raise ValueError("an upstream is named 'vllm', the name of the vLLM child process; rename it")
        for name in {EMBEDDED, SCRIPTED, DEFAULT_POLICY} & set(self.upstreams):
            raise ValueError(f"an upstream is named {name!r}, which is reserved; rename it")
        return self
