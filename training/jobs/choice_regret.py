"""Measure a scorer's choice regret on decision groups.

    qguide choice-regret --config training/configs/alfworld/choice_regret.toml

reads decision groups and a Q model (or a policy, whose own log-probability is the baseline); writes
one row per episode, and the figures of all episodes. It plays nothing, so look at it first after a
training: a model that chooses badly here wins no games. It takes a minute for 200 episodes, so a
killed run starts over; its rows appear all at once when it is done.

A hosted policy states no log-probabilities of replies that it has not drawn, so its score is the
share of its draws that act as a candidate does. What was drawn before a kill is not drawn again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Scorer, ScoreRequest
from qguide.training.algorithms.choice_quality import PlacedChoice, ScoredChoice
from qguide.training.algorithms.tree import Tree
from qguide.training.data.decision_groups import GroupDecision, GroupLabels, decisions_of, read_groups
from qguide.training.data.records import LabelledTree
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, read_rows, rows_at_once
from qguide.training.environments.registry import environment_config, environment_names, find_environment
from qguide.training.evaluation.choice_regret import (
    PolicyDraws,
    ScoredEpisodeRow,
    choice_figures,
    drawn_shares,
    scored_episode,
)
from qguide.training.optimization.packed_trees import Labelled, QPlace, sibling_choices
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
from qguide.training.trajectory import ChatFormat, reply_key, step_messages


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


def score_groups(scorer: Scorer, rows: Sequence[TreeRow]) -> list[list[list[float]]]:
    """Values of every candidate of every decision of every row.

    All episodes are scored step by step in parallel, so that each step is one batch and a scorer
    with a prefix cache reads each history once. A single candidate is not scored: it gets 0.
    """
    made = [decisions_of(row) for row in rows]
    observed = scorer.reads_observation
    scores: list[list[list[float]]] = [[] for _ in rows]
    for step in range(max(map(len, made))):
        alive = [i for i, own in enumerate(made) if step < len(own)]
        choices = [i for i in alive if len(made[i][step].candidates) > 1]
        requests = [_request(made[i][step], observed=observed) for i in choices]
        values = dict(zip(choices, scorer.score(requests), strict=True)) if requests else {}
        for i in alive:
            scores[i].append(list(values[i].q_values) if i in values else [0.0])
    return scores


def choices_by(scorer: Scorer, rows: Sequence[TreeRow], labels: GroupLabels) -> list[ScoredChoice]:
    """Every decision between several candidates, with a scorer's values and the candidates' labels."""
    return [
        replace(decision.choice(decision.labels(labels), task=row.task_id), q_values=values)
        for row, scores in zip(rows, score_groups(scorer, rows), strict=True)
        for decision, values in zip(decisions_of(row), scores, strict=True)
        if len(decision.candidates) > 1
    ]


def sibling_choices_by(scorer: Scorer, trees: Iterable[LabelledTree]) -> list[ScoredChoice]:
    """The same of every state in trees with several labelled actions."""
    return [choice for tree in trees for choice in _siblings(scorer, tree)]


def _siblings(scorer: Scorer, labelled: LabelledTree) -> list[ScoredChoice]:
    tree, firsts = labelled.tree, dict[tuple[int, str], int]()
    read = list[Labelled]()
    for node_id, label in labelled.labels.items():
        node = tree.node(node_id)
        first = firsts.setdefault((node.parent, reply_key(node.step.message)), node_id)
        read.append(Labelled(node_id, node.parent, QPlace(first, label)))
    placed = sibling_choices(labelled, read)
    requests = [_sibling_request(tree, one, observed=scorer.reads_observation) for one in placed]
    results = scorer.score(requests) if requests else []
    return [replace(one.choice, q_values=result.q_values) for one, result in zip(placed, results, strict=True)]


def _sibling_request(tree: Tree, siblings: PlacedChoice, *, observed: bool) -> ScoreRequest:
    """Actions of one state, by their nodes, with what each was answered if the Q model reads that."""
    nodes = [tree.node(place) for place in siblings.places]
    return ScoreRequest(
        tree.history(nodes[0].parent),
        tuple(node.step.message for node in nodes),
        observations=tuple(step_messages(node.step)[1:] for node in nodes) if observed else (),
        counts=tuple(siblings.choice.draws),
    )


def _request(decision: GroupDecision, *, observed: bool) -> ScoreRequest:
    candidates = decision.candidates
    answers = tuple(c.answer for c in candidates)
    return ScoreRequest(
        decision.history,
        tuple(candidate.message for candidate in candidates),
        observations=answers if observed else (),
        counts=tuple(candidate.count for candidate in candidates),
        logprobs=tuple(candidate.logprob for candidate in candidates),
    )
