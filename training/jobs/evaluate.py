"""Evaluate guidance: play all methods on the same tasks, seeds and candidates.

    qguide evaluate --engine textworld --games DIR --candidates 5 --seeds 0,1,2 --output DIR

writes into the output folder:

    episodes.jsonl            one row per episode, from which a killed run is resumed
    results.json              rows, summary, paired comparisons, configuration, versions
    success_vs_tokens.png     success against completion tokens
"""

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from rich.console import Console

from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.selection import DEFAULT_TAU, PriorBy
from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import Sampling, Scorer
from qguide.training.data.row_files import sha256_of_rows
from qguide.training.evaluation.methods import Play, method_of
from qguide.training.evaluation.paraphrased import Paraphrases, read_paraphrases
from qguide.training.evaluation.records import (
    DEFAULT_METHODS,
    GUIDED,
    METHODS,
    PARAPHRASED,
    VALUING,
    EpisodeFailure,
    EpisodeRow,
    MethodName,
    Results,
)
from qguide.training.evaluation.reflexion import Reflexion
from qguide.training.evaluation.report import plot_success, print_results
from qguide.training.evaluation.results import (
    EPISODES,
    NOTES,
    compare,
    kinds_of,
    method_rows,
    read_episodes,
    summarise,
    write_results,
)
from qguide.training.evaluation.schedule import MethodTrial, plan_trials, play_trials
from qguide.training.evaluation.search import TaskTrials, ValueModels
from qguide.training.rollouts.harness import PlayableTask, RolloutConfig, Rollouts, open_rollouts
from qguide.training.rollouts.hosted import is_hosted
from qguide.training.rollouts.judges import usage_of
from qguide.training.rollouts.models import (
    EMBEDDED,
    environment_warning,
    fitted_prior_of,
    licence_warning,
    sha256_of_policy,
    sha256_of_q_model,
)
from qguide.training.rollouts.policies import JobPolicy
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.rollouts.usage import UpstreamUsage

PLOT = "success_vs_tokens.png"
PACKAGES = ("qguide", "torch", "transformers", "numpy")


class EvaluateConfig(RolloutConfig):
    """Configuration of `qguide evaluate`.

    Attributes:
        policy: "embedded", a policy's folder, "upstream:NAME" or an address with "#" and a model.
        qnet: "embedded", a checkpoint's folder, of a QNet or an implicit Q, or "judge:NAME"; only
            the guided methods and those that try before they choose use it.
        verifier: folder of a Q model, read after the observation, that values the tries of
            verifier-best-of-n, q-beam and lats; "" uses `qnet`.
        stop_at: value of a trajectory, Q of its last state, at which verifier-best-of-n stops drawing;
            None for never.
        trajectories: maximum number of trajectories of best-of-n and verifier-best-of-n; None for
            as many as candidates, or as many as the tokens of q-guided-n pay for, or of q-guided
            where q-guided-n is not played.
        beams: number of trajectories that q-beam keeps, each with `candidates` draws per step.
        lats_iterations: maximum number of trajectories of lats, which ends with the first success.
        guided_trajectories: N, the number of trajectories of q-guided-n.
        reflexion: options of reflexion, whose policy has to be a model that follows instructions.
        paraphrases: run folder of `paraphrase`, for q-guided-aug and best-of-n-aug.
        methods: ways of choosing; each plays all tasks. "package.module:function" is one of your own,
            which `qnet` answers, too; so is a name that an installed package brings (`qguide.methods`).
        candidates: M, the number of candidates per step; the most for adaptive.
        seeds: of the draws; each plays all tasks once.
        max_tokens: maximum number of tokens of a reply.
        max_steps: number of actions after which an episode is cut off.
        temperature: sampling temperature of all draws except greedy ones.
        greedy_candidate: draw the first of the M candidates greedily.
        tau: temperature of Q in q-posterior; None is the Q model's fitted one, or 0.05.
        prior: of q-posterior; None is what the Q model was fitted with, or votes.
        greedy_weight: of q-posterior, added to the log prior of the greedy reply; None is what the
            Q model was fitted with, or 0.
        until_decided: q-posterior draws two at a time until no further draw can change its choice;
            the highest Q is taken to be 1.
    """

    policy_fields = ("policy",)

    policy: str = EMBEDDED
    qnet: str = EMBEDDED
    verifier: str = ""
    methods: tuple[MethodName, ...] = Field(default=DEFAULT_METHODS, min_length=1)
    candidates: int = Field(default=5, ge=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0, 1, 2), min_length=1)
    temperature: float = Field(default=0.7, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    max_steps: int = Field(default=40, ge=1)
    greedy_candidate: bool = True
    tau: float | None = Field(default=None, ge=0)
    prior: PriorBy | None = None
    greedy_weight: float | None = Field(default=None, ge=0)
    until_decided: bool = False
    stop_at: float | None = None
    trajectories: int | None = Field(default=None, ge=1)
    beams: int = Field(default=2, ge=1)
    lats_iterations: int = Field(default=5, ge=1)
    guided_trajectories: int = Field(default=3, ge=1)
    reflexion: Reflexion = Reflexion()
    paraphrases: Path | None = None

    @field_validator("methods", "seeds")
    @classmethod
    def _once_each(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(values)) != len(values):
            raise ValueError(f"{list(values)} has a value twice; name each once")
        return values

    @model_validator(mode="after")
    def _evaluate_fields_agree(self) -> Self:
        if "likeliest" in self.methods and is_hosted(self.policy):
            raise ValueError(
                f"policy is {self.policy!r}, which states no log-probabilities of whole replies; "
                "leave out the method likeliest, or use a policy that runs in this process"
            )
        named = sorted(PARAPHRASED.intersection(self.methods))
        if named and self.paraphrases is None:
            raise ValueError(
                f"{', '.join(named)}: paraphrases is not set; name a run folder of `qguide "
                "paraphrase`, or leave the method out"
            )
        return self

    def needs_qnet(self, *, verified: bool) -> bool:
        """True if a method uses `qnet`."""
        tries = not VALUING.isdisjoint(self.methods)
        may_ask = not set(self.methods).issubset(METHODS)
        return may_ask or not GUIDED.isdisjoint(self.methods) or (tries and not verified)

    @property
    def most_trajectories(self) -> int:
        """Most trajectories of either best-of-n; a budget of tokens may end them before."""
        if self.trajectories is not None:
            return self.trajectories
        return sys.maxsize if self.budget_of else self.candidates

    @property
    def budget_of(self) -> MethodName | None:
        """The guided method whose tokens either best-of-n gets: the one that spends more."""
        played: tuple[MethodName, ...] = ("q-guided-n", "q-guided")
        return next((method for method in played if method in self.methods), None)

    @property
    def play(self) -> Play:
        """Options of an episode."""
        return Play(
            candidates=self.candidates,
            sampling=Sampling(temperature=self.temperature, max_tokens=self.max_tokens),
            greedy_candidate=self.greedy_candidate,
            max_steps=self.max_steps,
            tau=DEFAULT_TAU if self.tau is None else self.tau,
            prior=self.prior or "votes",
            greedy_weight=self.greedy_weight or 0.0,
            until=UntilDecided(highest_q=1.0) if self.until_decided else None,
        )


def run_evaluate(
    config: EvaluateConfig,
    *,
    policy: JobPolicy | None = None,
    scorer: Scorer | None = None,
    verifier: Scorer | None = None,
    console: Console | None = None,
) -> Results:
    """Play the trials that have no episode yet, then write and show the results."""
    for name in set(config.methods).difference(METHODS):
        method_of(name)  # refused before anything is played
    guided = scorer is None and config.needs_qnet(verified=bool(config.verifier) or verifier is not None)
    if guided and "q-posterior" in config.methods:
        config = _with_fitted_prior(config)
    hashes = {
        "policy_sha256": sha256_of_policy(config.policy) if policy is None else "",
        "qnet_sha256": sha256_of_q_model(config.qnet, config.inference) if guided else "",
        "verifier_sha256": sha256_of_q_model(config.verifier, config.inference) if verifier is None else "",
        "paraphrases_sha256": sha256_of_rows([config.paraphrases]) if config.paraphrases else "",
    }
    with open_rollouts("evaluate", config, weights=hashes) as rollouts:
        if policy is None:
            policy = rollouts.build_policy(config.policy)
        if verifier is None and config.verifier:
            verifier = rollouts.build_scorer(config.verifier)
        if guided:
            scorer = rollouts.build_scorer(config.qnet)
        shown = console or Console()
        if guided and (warning := environment_warning(config.qnet, config.environment.name)):
            shown.print(f"warning: {warning}", markup=False, soft_wrap=True)
        if hashes["qnet_sha256"] and (warning := licence_warning(config.qnet)):
            shown.print(f"warning: {warning}", markup=False, soft_wrap=True)
        models = ValueModels(scorer, verifier)
        models.require_fit(config.methods)
        start = perf_counter()
        failures = _play_all(config, rollouts, policy, models)
        judged = usage_of(scorer)
        seconds = perf_counter() - start
        conditions = config.model_dump(mode="json") | hashes
        return _sum_up(config, conditions, rollouts, failures, seconds=seconds, judged=judged, console=shown)


def _with_fitted_prior(config: EvaluateConfig) -> EvaluateConfig:
    fitted = fitted_prior_of(config.qnet)
    known: dict[str, object] = {}
    if fitted:
        known = {"tau": fitted.tau, "prior": fitted.by, "greedy_weight": fitted.greedy_weight}
    return config.model_copy(update={n: v for n, v in known.items() if getattr(config, n) is None})


def _play_all(
    config: EvaluateConfig, rollouts: Rollouts, policy: JobPolicy, models: ValueModels
) -> list[EpisodeFailure]:
    evaluator = _Evaluator(config, rollouts, observes=models.observes)
    rollouts.play(
        evaluator.evaluate,
        policy=policy,
        scorer=models.scorer,
        finished={task.id for task in rollouts.suite.tasks if not evaluator.waiting(task.id)},
        rows=EPISODES,
        rows_per_task=len(evaluator.trials),
        rows_written=len(evaluator.played),
    )
    if rollouts.failures:  # none of a trial, which `play_trials` catches itself
        first = rollouts.failures[0]
        raise EnvironmentFailureError(f"{first.task_id}: {first.error}")
    return evaluator.failures


class _Evaluator:
    """Plays each task's trials and writes every episode as soon as it is over."""

    def __init__(self, config: EvaluateConfig, rollouts: Rollouts, *, observes: bool) -> None:
        self._config, self._observes = config, observes
        self._paraphrases: Paraphrases = {}
        if config.paraphrases is not None:
            task_ids = [task.id for task in rollouts.suite.tasks]
            self._paraphrases = read_paraphrases(config.paraphrases, task_ids)
        self._rollouts = rollouts
        self.trials = plan_trials(config.methods, config.seeds)
        self.played = read_episodes(rollouts.folder.path)
        self.failures: list[EpisodeFailure] = []
        self._won = self._counted = 0

    def waiting(self, task_id: str) -> list[MethodTrial]:
        """The trials of a task that have no episode yet."""
        return [t for t in self.trials if (t.method, t.seed, task_id) not in self.played]

    def evaluate(self, playable: PlayableTask) -> RolloutTask[None]:
        """Play one task's trials; best-of-n gets the token budgets of the guided episodes."""
        task, config = playable.task, self._config
        budget_of = config.budget_of
        guided = [self.played.get((budget_of, seed, task.id)) for seed in config.seeds if budget_of]
        shared = TaskTrials(
            playable=playable,
            play=config.play,
            budgets={r.seed: r.completion_tokens for r in guided if r and r.seed is not None},
            budget_of=budget_of,
            trajectories=config.most_trajectories,
            guided_trajectories=config.guided_trajectories,
            observes=self._observes,
            stop_at=config.stop_at,
            beams=config.beams,
            lats_iterations=config.lats_iterations,
            reflexion=config.reflexion,
            paraphrases=self._paraphrases.get(task.id, ()),
            on_row=self._on_row,
            on_failure=self._on_failure,
        )
        yield from play_trials(shared, self.waiting(task.id))

    def _on_row(self, row: EpisodeRow) -> None:
        self._won += row.success
        self._counted += 1
        self._rollouts.write(row, note=f"{self._won}/{self._counted} won")

    def _on_failure(self, failure: EpisodeFailure) -> None:
        self.failures.append(failure)
        self._rollouts.metrics.write(failure)
        self._rollouts.advance(f"{len(self.failures)} failed")


def _sum_up(
    config: EvaluateConfig,
    conditions: dict[str, Any],
    rollouts: Rollouts,
    failures: Sequence[EpisodeFailure],
    *,
    seconds: float,
    judged: UpstreamUsage | None,
    console: Console,
) -> Results:
    run, suite = rollouts.folder, rollouts.suite
    episodes = read_episodes(run.path)
    if not episodes and failures:
        raise EnvironmentFailureError(f"no episode could be played; the first failure: {failures[0].error}")
    expected = len(plan_trials(config.methods, config.seeds)) * len(suite.tasks)
    results = Results(
        complete=len(episodes) == expected,
        tasks=len(suite.tasks),
        kinds=kinds_of(episodes),
        rows=tuple(method_rows(episodes, config.seeds)),
        summary=tuple(summarise(episodes, config.seeds)),
        comparisons=tuple(compare(episodes, config.seeds)),
        failures=tuple(failures),
        wall_clock_s=seconds,
        usage=rollouts.usage,
        judge_usage=judged,
        config=conditions,
        versions=_versions((*PACKAGES, *suite.environment.packages)),
        notes=NOTES,
    )
    write_results(run.path, results)
    plot_success(results, episodes, run.path / PLOT)
    print_results(results, console)
    return results


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and of the installed ones of these packages."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
