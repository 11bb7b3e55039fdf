"""Measure a scorer's choice regret on decision groups, and check that it reads what it scores.

    qguide choice-regret --config training/configs/alfworld/choice_regret.toml

reads decision groups and a Q model (or a policy, whose own log-probability is the baseline); writes
one row per episode, and the figures of all episodes. It plays nothing, so look at it first after a
training: a model that chooses badly here wins no games. It takes a minute for 200 episodes, so a
killed run starts over; its rows appear all at once when it is done.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qnet.errors import ConfigError
from qnet.types import History, Message, Scorer, ScoreRequest, reads_observation
from training.data.decision_groups import DecisionGroupsRow, DecisionRow
from training.data.runs import JsonlWriter, RunFolder, open_run, read_rows, rows_path
from training.environment import ReadPair
from training.environments.registry import find_environment
from training.evaluation.choice_regret import ScoredEpisodeRow, choice_figures, scored_episode
from training.evaluation.read_pairs import ScoredReadPair, read_pair_figures
from training.rollouts.episode import derived_seed
from training.rollouts.models import (
    Inference,
    build_logprob_scorer,
    build_scorer,
    sha256_of_policy,
    sha256_of_q_model,
)
from training.trajectory import observation_message

EPISODES_AT_ONCE = 32


class ChoiceRegretConfig(BaseModel):
    """Configuration of `qguide choice-regret`.

    Attributes:
        groups: run folders of `groups`, preferably of held-back tasks.
        output: the run folder to write.
        qnet: "embedded" or the folder of a Q model, either a QNet or an implicit Q.
        policy: "embedded" or a policy's folder; its log-probability is the score, instead of
            `qnet`.
        inference: how the scorer runs.
        most_steps: steps counted for a continuation that does not reach the goal.
        read_pairs: also score counterfactual pairs, if the environment provides them and the Q
            model reads at the action.
        seed: seed of the read pairs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[Path, ...] = Field(min_length=1)
    output: Path
    qnet: str = ""
    policy: str = ""
    inference: Inference = Inference()
    most_steps: float = Field(default=50, gt=0)
    read_pairs: bool = True
    seed: int = 0

    @model_validator(mode="after")
    def _one_scorer(self) -> Self:
        if bool(self.qnet) == bool(self.policy):
            raise ValueError(
                f"qnet is {self.qnet!r} and policy {self.policy!r}; name exactly one of them"
            )
        return self


def run_choice_regret(
    config: ChoiceRegretConfig, *, scorer: Scorer | None = None
) -> dict[str, float]:
    """Score every decision, write the rows and return the figures, as in `metrics.jsonl`.

    Args:
        config: decision groups and model.
        scorer: used instead of the model that `config` names.

    Raises:
        ConfigError: the run folder belongs to another configuration, or no state has two
            candidates.
        RecordError: a row is not a valid decision group.
    """
    own = scorer is None
    weights = {
        "qnet_sha256": sha256_of_q_model(config.qnet) if own else "",
        "policy_sha256": sha256_of_policy(config.policy) if own and config.policy else "",
    }
    with open_run(config.output, config, weights=weights) as run:
        return _score_all(config, run, scorer or _build_scorer(config))


def _build_scorer(config: ChoiceRegretConfig) -> Scorer:
    if config.policy:
        return build_logprob_scorer(config.policy, config.inference)
    return build_scorer(config.qnet, config.inference)


def _score_all(config: ChoiceRegretConfig, run: RunFolder, scorer: Scorer) -> dict[str, float]:
    rows = [row for path in config.groups for row in read_rows(rows_path(path), DecisionGroupsRow)]
    episodes: list[ScoredEpisodeRow] = []
    unfinished = run.rows.with_suffix(".partial")
    unfinished.unlink(missing_ok=True)
    with JsonlWriter(unfinished) as writer:
        for first in range(0, len(rows), EPISODES_AT_ONCE):
            some = rows[first : first + EPISODES_AT_ONCE]
            for row, scores in zip(some, score_groups(scorer, some), strict=True):
                episodes.append(scored_episode(row, scores, most_steps=config.most_steps))
                writer.write(episodes[-1])
    if not any(episode.decisions for episode in episodes):
        raise ConfigError(
            f"{', '.join(map(str, config.groups))}: no decision between several candidates; draw "
            "more candidates per state, or at a higher temperature, with `qguide groups`"
        )
    unfinished.replace(run.rows)
    figures = choice_figures(episodes)
    # In counterfactual states no action was executed, so there is no observation to read.
    if config.read_pairs and not reads_observation(scorer):
        figures |= read_pair_figures(list(_scored_read_pairs(scorer, rows, seed=config.seed)))
    with JsonlWriter(run.metrics) as metrics:
        metrics.write({"scorer": scorer.name, **figures})
    return figures


def score_groups(scorer: Scorer, rows: Sequence[DecisionGroupsRow]) -> list[list[list[float]]]:
    """Values of every candidate of every decision of every row.

    All episodes are scored step by step in parallel, so that each step is one batch and a scorer
    with a prefix cache reads each history once. A single candidate is not scored: it gets 0.
    """
    states = [list(row.states()) for row in rows]
    observed = reads_observation(scorer)
    scores: list[list[list[float]]] = [[] for _ in rows]
    for step in range(max(map(len, states))):
        alive = [i for i, own in enumerate(states) if step < len(own)]
        choices = [i for i in alive if len(states[i][step][1].candidates) > 1]
        requests = [_request(*states[i][step], observed=observed) for i in choices]
        values = dict(zip(choices, scorer.score(requests), strict=True)) if requests else {}
        for i in alive:
            scores[i].append(list(values[i].q_values) if i in values else [0.0])
    return scores


def _request(history: History, decision: DecisionRow, *, observed: bool) -> ScoreRequest:
    """A decision's candidates, with what each was answered if the Q model reads that."""
    candidates = decision.candidates
    answers = tuple((observation_message(c.observation),) for c in candidates)
    replies = tuple(_reply(c.action) for c in candidates)
    return ScoreRequest(history, replies, observations=answers if observed else ())


def _scored_read_pairs(
    scorer: Scorer, rows: Sequence[DecisionGroupsRow], *, seed: int
) -> Iterator[ScoredReadPair]:
    """The scorer's values for the read pairs of all rows; none if an environment has no pairs."""
    for row in rows:
        make = find_environment(row.environment).read_pairs
        if make is None:
            continue
        rng = Random(derived_seed(seed, row.task_id))
        for history, decision in row.states():
            for pair in make(history, [c.action for c in decision.candidates], rng):
                yield _scored_read_pair(scorer, pair)


def _scored_read_pair(scorer: Scorer, pair: ReadPair) -> ScoredReadPair:
    replies = tuple(_reply(text) for text in (pair.reply, pair.rival) if text is not None)
    present, absent = (
        result.q_values
        for result in scorer.score([ScoreRequest(h, replies) for h in (pair.present, pair.absent)])
    )
    if pair.rival is None:
        return ScoredReadPair(present[0], absent[0])
    return ScoredReadPair(present[0], absent[0], rival_present=present[1], rival_absent=absent[1])


def _reply(text: str) -> Message:
    return Message("assistant", text)
