r"""Regret of guided choices: every candidate of guided episodes, played to the end by an expert.

    qguide choice-regret --config training/configs/alfworld/choice_regret.toml \
        --set environment.games=DIR

reads a policy and a Q model; writes one row per episode, and figures over all decisions.
"""

from functools import partial

from pydantic import Field
from rich.console import Console

from qnet.errors import EnvironmentFailureError
from qnet.types import BatchPolicy, Sampling, Scorer
from training.data.runs import read_rows
from training.evaluation.choice_regret import (
    ChoiceRegretRow,
    play_choices,
    summarise_choices,
)
from training.evaluation.methods import Play
from training.rollouts.harness import PlayableTask, RolloutConfig, Rollouts, open_rollouts
from training.rollouts.models import (
    EMBEDDED,
    EXPERT,
    build_policy,
    build_scorer,
    sha256_of_policy,
    sha256_of_q_model,
)
from training.rollouts.policies import PolicyWithRollouts
from training.rollouts.rollout import RolloutTask


class ChoiceRegretConfig(RolloutConfig):
    """Configuration of `qguide choice-regret`.

    Attributes:
        policy, qnet: "embedded" or a checkpoint's folder: the guided agent.
        rollouts: plays on after every candidate, at temperature 0: "expert" for the
            environment's, or a policy as above.
        candidates: M.
        temperature: of the draws; the first candidate is the greedy one where the next says so.
        max_steps: of the guided episode.
        horizon: most actions of a rollout, those before its candidate included.
    """

    policy: str = EMBEDDED
    qnet: str = EMBEDDED
    rollouts: str = EXPERT
    candidates: int = Field(default=5, ge=2)
    temperature: float = Field(default=0.7, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    greedy_candidate: bool = True
    seed: int = 0
    max_steps: int = Field(default=40, ge=1)
    horizon: int = Field(default=60, ge=1)

    @property
    def play(self) -> Play:
        """How the guided agent plays."""
        return Play(
            candidates=self.candidates,
            sampling=Sampling(self.temperature, self.max_tokens),
            greedy_candidate=self.greedy_candidate,
            max_steps=self.max_steps,
        )


def run_choice_regret(
    config: ChoiceRegretConfig,
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Play the tasks that have no row yet; returns figures over all of them.

    Args:
        config: what to play.
        policy, scorer: play in place of those that `config` names; the policy plays on, too.
        console: where progress is shown; None takes stderr.

    Raises:
        ConfigError: the run folder belongs to another configuration.
        EnvironmentFailureError: an episode failed; a run again goes on with the others.
    """
    weights = {
        "policy_sha256": "" if policy else sha256_of_policy(config.policy),
        "qnet_sha256": "" if scorer else sha256_of_q_model(config.qnet),
        "rollouts_sha256": "" if policy else sha256_of_policy(config.rollouts),
    }
    with open_rollouts("choice-regret", config, weights=weights, console=console) as rollouts:
        rollouts.play(
            partial(_play_task, config, rollouts),
            policy=policy or _build_policy(config),
            scorer=scorer or build_scorer(config.qnet, config.inference),
        )
        if rollouts.failures:
            first = rollouts.failures[0]
            raise EnvironmentFailureError(
                f"{len(rollouts.failures)} tasks failed; the first: {first.task_id}: {first.error}"
            )
        summary = summarise_choices(list(read_rows(rollouts.folder.rows, ChoiceRegretRow)))
        rollouts.metrics.write(summary)
        return summary


def _build_policy(config: ChoiceRegretConfig) -> BatchPolicy:
    """The policy that draws, and the one that plays on."""
    return PolicyWithRollouts(
        build_policy(config.policy, config.inference, config.environment),
        build_policy(config.rollouts, config.inference, config.environment),
    )


def _play_task(
    config: ChoiceRegretConfig, rollouts: Rollouts, playable: PlayableTask
) -> RolloutTask[None]:
    row = yield from play_choices(
        playable.make,
        config.play,
        seed=config.seed,
        task=playable.task,
        environment=playable.environment,
        horizon=config.horizon,
    )
    rollouts.write(row)
