"""Measure a scorer's choice regret on decision groups.

    qguide choice-regret --config training/configs/alfworld/choice_regret.toml

reads decision groups and a Q model (or a policy, whose own log-probability is the baseline); writes
one row per episode, and the figures of all episodes. It plays nothing, so look at it first after a
training: a model that chooses badly here wins no games. It takes a minute for 200 episodes, so a
killed run starts over; its rows appear all at once when it is done.

A hosted policy states no log-probabilities of replies that it has not drawn, so its score is the
share of its draws that act as a candidate does. What was drawn before a kill is not drawn again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Scorer
from qguide.training.data.decision_groups import read_groups
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, read_rows, rows_at_once
from qguide.training.environments.registry import environment_config, environment_names, find_environment
from qguide.training.evaluation.choice_regret import (
    PolicyDraws,
    ScoredEpisodeRow,
    choice_figures,
    drawn_shares,
    scored_episode,
)
from qguide.training.licence.scored_decisions import score_groups
from qguide.training.options import JobOptions
from qguide.training.rollouts.driver import HostedRun
from qguide.training.rollouts.hosted import (
    UPSTREAMS_MAY_CHANGE,
    HostedPolicy,
    Upstreams,
    build_hosted_policy,
    is_hosted,
    require_upstream,
)
from qguide.training.rollouts.judges import usage_of
from qguide.training.rollouts.models import (
    Inference,
    build_logprob_scorer,
    build_scorer,
    sha256_of_policy,
    sha256_of_q_model,
)
from qguide.training.rollouts.rollout import RolloutTask, prompted
from qguide.training.rollouts.usage import UpstreamUsage
from qguide.training.trajectory import ChatFormat


def chat_of_rows(path: Path, environment: str) -> ChatFormat:
    """The chat format of the run that wrote some rows."""
    if ":" not in environment and environment not in environment_names():
        return ChatFormat()
    bundle = find_environment(environment)
    if bundle.configure is None:
        return bundle.chat
    table = _table_beside(path)
    if table.get("name") != environment:
        raise ConfigError(
            f"{path}: nothing says which tools and few-shot turns the policy had in {environment}, "
            "so its draws would be others; name the run folder of `groups`, with its config.json"
        )
    return bundle.configure(environment_config(table)).chat


def _table_beside(rows: Path) -> Mapping[str, Any]:
    """The `[environment]` table of the run that wrote the rows; empty if there is none."""
    table = RunFolder(rows if rows.is_dir() else rows.parent).read_config().get("environment")
    return table if isinstance(table, Mapping) else {}


EPISODES_AT_ONCE = 32
DRAWN = "drawn.jsonl"
MAY_CHANGE = frozenset({"output", "draws.parallel"}) | UPSTREAMS_MAY_CHANGE


class ChoiceRegretConfig(JobOptions):
    """Configuration of `qguide choice-regret`.

    Attributes:
        groups: run folders of `groups`, preferably of held-back tasks.
        output: the run folder to write.
        qnet: "embedded", the folder of a Q model, either a QNet or an implicit Q, or "judge:NAME".
        policy: "embedded" or a policy's folder, whose log-probability is the score instead of
            `qnet`; or "upstream:NAME" or an address with "#" and a model, whose share of draws is.
        upstreams: name -> a hosted model, which `policy = "upstream:NAME"` draws from.
        draws: draws of a hosted policy.
        inference: how the scorer runs.
        most_steps: steps counted for a continuation that does not reach the goal.
        seed: seed of the draws.
    """

    groups: tuple[Path, ...] = Field(min_length=1)
    output: Path
    qnet: str = ""
    policy: str = ""
    upstreams: Upstreams = Field(default_factory=dict)
    draws: PolicyDraws = PolicyDraws()
    inference: Inference = Inference()
    most_steps: float = Field(default=50, gt=0)
    seed: int = 0

    @model_validator(mode="after")
    def _one_scorer(self) -> Self:
        if bool(self.qnet) == bool(self.policy):
            raise ValueError(f"qnet is {self.qnet!r} and policy {self.policy!r}; name exactly one of them")
        require_upstream(self.policy, self.upstreams)
        return self


def run_choice_regret(config: ChoiceRegretConfig, *, scorer: Scorer | None = None) -> dict[str, float]:
    """Score every decision, write the rows and return the figures, as in `metrics.jsonl`."""
    own = scorer is None
    weights = {
        "qnet_sha256": sha256_of_q_model(config.qnet, config.inference) if own else "",
        "policy_sha256": sha256_of_policy(config.policy) if own and config.policy else "",
    }
    with open_run(config.output, config, may_change=MAY_CHANGE, weights=weights) as run:
        read = [(path, row) for path in config.groups for row in read_groups(path)]
        rows = [row for _, row in read]
        if own and is_hosted(config.policy):
            policy = build_hosted_policy(config.policy, config.upstreams)
            sources = {(path, row.environment) for path, row in read}
            chats = {source: chat_of_rows(*source) for source in sources}
            prompts = [chats[path, row.environment] for path, row in read]
            drawn = _score_by_draws(config, run, policy, rows, prompts)
            return _write(config, run, policy.name, drawn)
        scorer = scorer or _build_scorer(config)
        episodes = _score_all(config, scorer, rows)
        return _write(config, run, scorer.name, episodes, usage=usage_of(scorer))


def _build_scorer(config: ChoiceRegretConfig) -> Scorer:
    if config.policy:
        return build_logprob_scorer(config.policy, config.inference)
    return build_scorer(config.qnet, config.inference)


def _write(
    config: ChoiceRegretConfig,
    run: RunFolder,
    scorer: str,
    episodes: Sequence[ScoredEpisodeRow],
    usage: UpstreamUsage | None = None,
) -> dict[str, float]:
    if not any(episode.decisions for episode in episodes):
        raise ConfigError(
            f"{', '.join(map(str, config.groups))}: no decision between several candidates; draw "
            "more candidates per state, or at a higher temperature, with `qguide groups`"
        )
    with rows_at_once(run.rows) as writer:
        writer.write(*episodes)
    figures = choice_figures(episodes)
    with JsonlWriter(run.metrics) as metrics:
        spent = {"judge_usage": usage.model_dump()} if usage else {}
        metrics.write({"scorer": scorer, **figures, **spent})
    return figures


def _score_all(config: ChoiceRegretConfig, scorer: Scorer, rows: Sequence[TreeRow]) -> list[ScoredEpisodeRow]:
    episodes: list[ScoredEpisodeRow] = []
    for first in range(0, len(rows), EPISODES_AT_ONCE):
        some = rows[first : first + EPISODES_AT_ONCE]
        for row, scores in zip(some, score_groups(scorer, some), strict=True):
            episodes.append(scored_episode(row, scores, most_steps=config.most_steps))
    return episodes


class _DrawnRow(BaseModel):
    """The shares of one episode's candidates, kept for a later start of the run."""

    number: int
    task_id: str
    shares: list[list[float]]


def _score_by_draws(
    config: ChoiceRegretConfig,
    run: RunFolder,
    policy: HostedPolicy,
    rows: Sequence[TreeRow],
    prompts: Sequence[ChatFormat],
) -> list[ScoredEpisodeRow]:
    path = run.path / DRAWN
    with JsonlWriter(path) as drawn, JsonlWriter(run.metrics) as metrics:
        shares = {row.number: row.shares for row in read_rows(path, _DrawnRow)}
        waiting = [number for number in range(len(rows)) if number not in shares]
        failures: list[QGuideError] = []

        def keep(number: int) -> RolloutTask[None]:
            task_id = rows[number].task_id
            asked = drawn_shares(rows[number], config.draws, seed=config.seed)
            own = yield from prompted(asked, prompts[number])
            shares[number] = own
            drawn.write(_DrawnRow(number=number, task_id=task_id, shares=own))

        HostedRun(run, metrics).play(
            ((rows[number].task_id, keep(number)) for number in waiting),
            policy=policy,
            parallel=config.draws.parallel,
            on_done=lambda task_id, value, timings: None,
            on_failure=lambda task_id, error: failures.append(error),
        )
    if failures:
        raise failures[0]
    return [scored_episode(row, shares[number], most_steps=config.most_steps) for number, row in enumerate(rows)]
