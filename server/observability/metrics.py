"""Metrics for Prometheus.

The series of a Q model are labelled with its `name@version` and removed with it, so their number is bounded by the
versions served. Only episodes that end later can bring a series back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeVar, get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qguide.qnet.decision.threshold import ActionTaken
from qguide.qnet.device.device_thread import Ending
from qguide.qnet.judging.judge import CallOutcome
from qguide.qnet.types import ActionOutcome, HistoryWindow, ThresholdAction
from qguide.qnet.work import TokenUsage
from qguide.server.observability.request_context import Tracing, current_account

_log = structlog.get_logger(__name__)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COUNTS = (1, 2, 3, 4, 5, 8, 16, 32, 64)
_Q_MODEL: Final = ["q_model"]
_TOKENS: Final = ("computed", "cached")
_AHEAD: Final = ("used", "wasted")
_VERDICTS: Final = ("best", "behind", "budget", "ended")
_STAGES: Final = ("sample", "score", "refine", "escalate")
_FITS: Final = ("licensed", "unlicensed", "failed")
_CAUSES: Final = ("disk", "episode")
_SIGNS: Final = ("positive", "negative")
_CALL_OUTCOMES: Final[tuple[CallOutcome, ...]] = get_args(CallOutcome)
_CALL_TOKENS: Final = ("prompt", "completion")
_ACTIONS: Final[tuple[ThresholdAction, ...]] = get_args(ThresholdAction)
_ACTION_OUTCOMES: Final[tuple[ActionOutcome, ...]] = get_args(ActionOutcome)
_ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)

Outcome = Literal["agreed", "disagreed", "failed"]
Metric = TypeVar("Metric", Counter, Gauge, Histogram)
_Series = tuple[Counter | Gauge | Histogram, tuple[str, ...]]  # a metric, and its labels


class Metrics:
    """The server's metrics in their own registry, and its tracing."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing or Tracing()
        self.registry = CollectorRegistry()
        self._of_q_models: list[Counter | Gauge | Histogram] = []
        self._load: list[tuple[Gauge, Callable[[], float]]] = []
        self._without_likelihood = set[tuple[str, str]]()
        self._watch_requests()
        self._watch_draws()
        self._watch_scoring()
        self._watch_judges()
        self._watch_episodes()
        self._watch_learning()

    def _watch_requests(self) -> None:
        self.requests = self._counter("requests", "Requests by route and status.", ["route", "status"])
        self.request_seconds = self._histogram("request_seconds", "Time of a whole request.", ["route"])
        self.key_requests = self._counter(
            "key_requests", "Requests by their API key's name and status.", ["key", "status"]
        )
        self.key_tokens = self._counter("key_tokens", "Tokens charged to an API key, by its name.", ["key"])
        self.connections_closed = self._counter(
            "connections_closed", "Connections that the server closed, by reason.", ["reason"]
        )
        self.stage_seconds = self._histogram("stage_seconds", "Time of each stage, including waits.", ["stage"])
        self.candidates = self._histogram("distinct_candidates", "Distinct candidates per request.", buckets=_COUNTS)
        self.unguided = self._counter(
            "unguided",
            "Requests answered with the likeliest candidate because Q was missing or told nothing.",
            _Q_MODEL,
        )
        self.missing_likelihood = self._counter(
            "missing_likelihood",
            "Requests chosen by votes where the prior is a likelihood, which the policy does not tell.",
            ["q_model", "policy"],
        )
        self.out_of_domain = self._counter(
            "out_of_domain", "Requests with a state of another kind than the Q model was trained on.", _Q_MODEL
        )

    def _watch_draws(self) -> None:
        self.completion_tokens = self._counter("completion_tokens", "Tokens that policies generated.")
        self.paraphrase_tokens = self._counter(
            "paraphrase_tokens", "Tokens read and generated for paraphrases; included in prompt and completion tokens."
        )
        self.draws_saved = self._counter(
            "draws_saved", "Candidates that adaptive M, or a choice already decided, did not need."
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens that policies read.")

    def _watch_scoring(self) -> None:
        self.queue_seconds = self._histogram(
            "queue_seconds",
            "Time that a scoring request waited for the device, by how the wait ended.",
            ["q_model", "ended"],
        )
        self.batch_requests = self._histogram("batch_requests", "Requests scored together.", _Q_MODEL, buckets=_COUNTS)
        self.batch_seconds = self._histogram("batch_seconds", "Device time of one batch.", _Q_MODEL)
        self.scorer_tokens = self._counter(
            "scorer_tokens", "Tokens that scorers computed or found in the cache.", ["q_model", "kind"]
        )
        self.read_ahead_tokens = self._counter(
            "read_ahead_tokens",
            "Tokens of histories that were read while an upstream drew; wasted if nothing was scored after them. "
            "Included in the scorer's computed tokens.",
            ["q_model", "outcome"],
        )
        self.cache_evictions = self._counter(
            "cache_evictions", "Histories evicted because the cache was full.", _Q_MODEL
        )
        self.cache_bytes = self._gauge("cache_bytes", "Keys and values kept between requests.", _Q_MODEL)
        self.windows = self._counter(
            "windows", "Requests scored after a window of a history that is longer than the Q model takes.", _Q_MODEL
        )
        self.left_out_tokens = self._counter(
            "left_out_tokens", "Tokens of long histories that a window left out.", _Q_MODEL
        )
        self.threshold_actions = self._counter(
            "threshold_actions",
            "Actions of steps whose best Q was below the threshold, by how they ended.",
            ["q_model", "action", "outcome"],
        )
        self.threshold_tokens = self._counter(
            "threshold_tokens",
            "Tokens read and generated because Q was below the threshold; included in prompt and completion tokens.",
            ["q_model", "action"],
        )
        self.shadow_requests = self._counter(
            "shadow_requests", "Requests scored a second time by a shadow.", ["q_model", "outcome"]
        )

    def _watch_judges(self) -> None:
        self.cost = self._counter(
            "cost",
            "Cost of steps by the operator's prices or the upstream's word: drawing, scoring, and actions below the "
            "threshold with what scoring theirs cost.",
            ["q_model", "stage"],
        )
        self.judge_calls = self._counter(
            "judge_calls", "Requests to a judge, by how they ended.", ["q_model", "outcome"]
        )
        self.judge_tokens = self._counter(
            "judge_tokens",
            "Tokens that a judge read and generated; included in the scorer's computed tokens.",
            ["q_model", "kind"],
        )

    def _watch_episodes(self) -> None:
        self.episodes = self._counter("episodes", "Episodes whose outcome was reported.", _Q_MODEL)
        self.unrecorded = self._counter(
            "unrecorded_episodes",
            "Attempts to record an episode that failed, by cause: the disk, or the episode or its redaction.",
            ["cause"],
        )
        for cause in _CAUSES:
            self.unrecorded.labels(cause)
        self.rewards = self._counter(
            "episode_reward",
            "Sum of the rewards of episodes, separately for positive and negative ones.",
            ["q_model", "sign"],
        )
        self.attempts = self._counter(
            "attempts", "Running attempts that were compared, by verdict.", ["q_model", "verdict"]
        )

    def _watch_learning(self) -> None:
        self._learning = {
            "phase": self._gauge("learning_phase", "1 for the phase of a group's learning.", ["group", "phase"]),
            "episodes": self._gauge(
                "learning_episodes", "Episodes with an outcome since a group's latest trial began.", ["group", "arm"]
            ),
            "difference": self._gauge(
                "learning_difference",
                "Guided minus unguided mean outcome of a group's latest trial, and its interval.",
                ["group", "end"],
            ),
            "extra": self._gauge(
                "learning_extra",
                "Extra tokens and cost of a guided episode of a group's latest trial.",
                ["group", "unit"],
            ),
            "spent": self._gauge(
                "learning_spent",
                "Tokens and cost in the budget's period of candidates beside the agent's own.",
                ["group", "unit"],
            ),
        }
        self.learning_fits = self._counter(
            "learning_fits", "Fits of a group's learning, by how they ended.", ["group", "outcome"]
        )

    def show_learning(self, group: str, **gauges: Mapping[str, float]) -> None:
        """Set the gauges of a group's learning; groups are keys or the operator's."""
        for name, numbers in gauges.items():
            for label, number in numbers.items():
                self._learning[name].labels(group, label).set(number)
        for outcome in _FITS:  # from 0 on, so that the first failure is an increase
            self.learning_fits.labels(group, outcome)

    def count_request(self, route: str, status: int, elapsed_s: float, *, key: str | None, tokens: int) -> None:
        """Count one request by its route and, on a server with keys, by the name of its key."""
        self.requests.labels(route, status).inc()
        self.request_seconds.labels(route).observe(elapsed_s)
        if key is not None:
            self.key_requests.labels(key, status).inc()
            self.key_tokens.labels(key).inc(tokens)

    def count_unrecorded(self, *, disk: bool) -> None:
        """Count an episode that was not recorded."""
        self.unrecorded.labels("disk" if disk else "episode").inc()

    def observe_wait(self, q_model: str, waited_s: float, ended: Ending) -> None:
        """Record the wait of one request in a Q model's queue."""
        self.queue_seconds.labels(q_model, ended).observe(waited_s)

    def observe_batch(self, q_model: str, requests: int, run_s: float, *, cache_bytes: int, evicted: int) -> None:
        """Record one batch of a Q model; called on the device thread."""
        self.batch_requests.labels(q_model).observe(requests)
        self.batch_seconds.labels(q_model).observe(run_s)
        self.cache_bytes.labels(q_model).set(cache_bytes)
        self.cache_evictions.labels(q_model).inc(evicted)

    def count_drawn(self, *, prompt: int, completion: int) -> None:
        """Count and charge the tokens that a policy read and generated for the current request."""
        self.prompt_tokens.inc(prompt)
        self.completion_tokens.inc(completion)
        current_account().tokens += prompt + completion

    def count_scored(self, q_model: str, *, computed: int, cached: int) -> None:
        """Count the tokens scored for the current request, and charge the computed ones."""
        current_account().tokens += computed
        self.count_tokens(q_model, computed=computed, cached=cached)

    def count_tokens(self, q_model: str, *, computed: int, cached: int) -> None:
        """Count scored tokens without charging anyone."""
        for kind, number in zip(_TOKENS, (computed, cached), strict=True):
            self.scorer_tokens.labels(q_model, kind).inc(number)

    def count_read_ahead(self, q_model: str, tokens: int, *, used: bool) -> None:
        """Count the tokens that were read ahead in one step, without charging anyone."""
        self.read_ahead_tokens.labels(q_model, "used" if used else "wasted").inc(tokens)

    def count_window(self, q_model: str, window: HistoryWindow) -> None:
        """Count one request that was scored after a window of its history."""
        self.windows.labels(q_model).inc()
        self.left_out_tokens.labels(q_model).inc(window.left_out_tokens)

    def count_missing_likelihood(self, q_model: str, policy: str) -> None:
        """Count one request chosen by votes in place of a likelihood; the first one of each policy is logged."""
        if (q_model, policy) not in self._without_likelihood:
            self._without_likelihood.add((q_model, policy))
            _log.warning(
                "votes in place of likelihoods",
                q_model=q_model,
                policy=policy,
                remedy="have requests ask for logprobs, or set QGUIDE_PRIOR to votes",
            )
        self.missing_likelihood.labels(q_model, policy).inc()

    def count_threshold_action(self, q_model: str, taken: ActionTaken) -> None:
        """Count one action of a step whose best Q was below the threshold, and its tokens."""
        self.threshold_actions.labels(q_model, taken.action, taken.outcome).inc()
        self.threshold_tokens.labels(q_model, taken.action).inc(taken.spent.tokens)

    def count_call(self, q_model: str, outcome: CallOutcome, spent: TokenUsage) -> None:
        """Count one request of a Q model to its upstream, and its tokens."""
        self.judge_calls.labels(q_model, outcome).inc()
        for kind, number in zip(_CALL_TOKENS, (spent.prompt_tokens, spent.completion_tokens), strict=True):
            self.judge_tokens.labels(q_model, kind).inc(number)

    def start_calls(self, q_model: str) -> None:
        """Start the counters of a Q model's requests to its upstream at 0."""
        for outcome in _CALL_OUTCOMES:
            self.judge_calls.labels(q_model, outcome)
        for kind in _CALL_TOKENS:
            self.judge_tokens.labels(q_model, kind)

    def count_shadow(self, q_model: str, outcome: Outcome) -> None:
        """Count one request that the Q model scored as a shadow."""
        self.shadow_requests.labels(q_model, outcome).inc()

    def count_episode(self, q_model: str, reward: float) -> None:
        """Count a finished episode for the Q model that guided it.

        A counter cannot decrease, so negative rewards have a series of their own. An episode may end after its version
        was unloaded, which creates the series again.
        """
        self.episodes.labels(q_model).inc()
        for sign, part in zip(_SIGNS, (max(reward, 0.0), max(-reward, 0.0)), strict=True):
            self.rewards.labels(q_model, sign).inc(part)

    def count_attempts(self, q_model: str, verdicts: Iterable[str]) -> None:
        """Count the verdicts on attempts that a Q model has compared."""
        for verdict in verdicts:
            self.attempts.labels(q_model, verdict).inc()

    def watch_load(
        self, *, waiting: Callable[[], int], running: Callable[[], int], cache_share: Callable[[], float]
    ) -> None:
        """Add the gauges by which a gateway picks a replica; `read_load` reads them.

        They have no labels, because endpoint pickers read one series of each.
        """
        for name, text, read in (
            ("requests_waiting", "Requests that wait for the device; one with many scores is one.", waiting),
            ("requests_running", "Requests that are being served and do not wait for it.", running),
            ("cache_share", "Largest share of its cache's budget that a Q model uses.", cache_share),
        ):
            self._load.append((self._gauge(name, text), read))

    def read_load(self) -> None:
        """Set the gauges of the load; on the event loop, where what they count does not change."""
        for gauge, read in self._load:
            gauge.set(read())

    def redis_up(self) -> Gauge:
        """Gauge that is 1 while Redis answers; it exists only if Redis is configured."""
        return self._gauge("redis_up", "1 if Redis answers, 0 while the server falls back to memory.")

    def start_series(self, q_model: str) -> None:
        """Start a Q model's rare counters at 0, because rate() misses a counter's first value."""
        for metric, labels in self._rare_series(q_model):
            metric.labels(*labels)

    def upstream_up(self) -> Gauge:
        """Gauge that is 1 while an upstream answers; it exists only if there are upstreams."""
        return self._gauge("upstream_up", "1 if the upstream answers, 0 if it is marked down.", ["upstream"])

    def remove_series(self, q_model: str) -> None:
        """Remove every series of a Q model that is no longer served."""
        for metric in self._of_q_models:
            metric.remove_by_labels({"q_model": q_model})

    def _rare_series(self, q_model: str) -> Iterator[_Series]:
        yield self.episodes, (q_model,)
        for counter in (self.unguided, self.out_of_domain, self.windows, self.left_out_tokens):
            yield counter, (q_model,)
        yield from ((self.queue_seconds, (q_model, ended)) for ended in _ENDINGS)
        yield from ((self.read_ahead_tokens, (q_model, outcome)) for outcome in _AHEAD)
        yield from ((self.rewards, (q_model, sign)) for sign in _SIGNS)
        yield from ((self.attempts, (q_model, verdict)) for verdict in _VERDICTS)
        for action in _ACTIONS:
            yield self.threshold_tokens, (q_model, action)
            for ended_as in _ACTION_OUTCOMES:
                yield self.threshold_actions, (q_model, action, ended_as)
        for stage in _STAGES:
            yield self.cost, (q_model, stage)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return self._kept(Gauge(f"qguide_{name}", text, labels, registry=self.registry), labels)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return self._kept(Counter(f"qguide_{name}_total", text, labels, registry=self.registry), labels)

    def _histogram(
        self, name: str, text: str, labels: Sequence[str] = (), *, buckets: tuple[float, ...] = _SECONDS
    ) -> Histogram:
        return self._kept(Histogram(f"qguide_{name}", text, labels, buckets=buckets, registry=self.registry), labels)

    def _kept(self, metric: Metric, labels: Sequence[str]) -> Metric:
        if "q_model" in labels:
            self._of_q_models.append(metric)
        return metric
