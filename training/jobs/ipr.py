"""Collect preference pairs of an agent's mistakes along expert trajectories (IPR 3.2 and 3.3).

    qguide ipr --config training/configs/alfworld/ipr.toml

reads an agent, a scorer and the expert's trajectories; plays the tasks that have one. The agent
plays to the end from every state of the trajectory. Where its action is worse than the expert's, by
the mean outcome of the scorer's roll-outs, and it ends worse, the expert's steps from there on are
preferred to its own. Where it ends worse from the start, so is the whole trajectory.

    explored.jsonl   one row per task, with its pairs and step rewards
    rows.jsonl       the pairs, all at once when the last task is done

The seed of a draw is derived from (seed, task, step), so neither `parallel` nor a resume changes a
row. The scorer stays the same over iterations, and so do the expert's step rewards: `earlier` names
the runs of the iterations before.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, NonNegativeInt
from rich.console import Console

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import NonEmpty, Reward, TaskRow
from qguide.qnet.types import BatchPolicy, History, Scorer
from qguide.training.data.preferences import PreferenceRow, preference_row, scored_messages
from qguide.training.data.records import TrajectoryRow, best_trajectories, messages_of
from qguide.training.data.runs import (
    EXPLORED,
    RunFolder,
    finished_task_ids,
    read_rows,
    regular,
    rows_at_once,
)
from qguide.training.exploration.contrast import Contrast, Contrasted, RewardModel, contrast_task
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.hosted import PREFIX, ROW_FIELDS, HostedPolicy, is_hosted
from qguide.training.rollouts.method import (
    Method,
    Models,
    PlayConfig,
    Played,
    hashes_of,
    play_job,
)
from qguide.training.rollouts.models import EMBEDDED
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import Step, path_history


class ContrastRow(TaskRow):
    """One explored trajectory: `ipr` writes it, and reads those of earlier iterations.

    Attributes:
        expert_sha256: hash of the expert's replies.
        expert_outcome: outcome reward of the expert's trajectory.
        expert_rewards: reward of each of its steps; null where no comparison needed it.
        own_outcome: outcome reward of the agent from the start; null if it could not reply.
        own_rewards: reward of the agent's action in each state; null where there is no comparison.
        deviations: number of states in which the agent took another action.
        pairs: preference pairs of both levels.
        source: name of the agent.
        seed: seed of the draws.
    """

    expert_sha256: NonEmpty
    expert_outcome: Reward
    expert_rewards: tuple[FiniteFloat | None, ...]
    own_outcome: Reward | None
    own_rewards: tuple[FiniteFloat | None, ...]
    deviations: NonNegativeInt
    pairs: tuple[PreferenceRow, ...]
    source: NonEmpty
    seed: int
    rollouts: NonNegativeInt = 0
    completion_tokens: Annotated[int, Field(ge=0)] = 0

    @property
    def known_rewards(self) -> dict[int, float]:
        """Rewards of the expert's steps, by number from 0."""
        return {t: reward for t, reward in enumerate(self.expert_rewards) if reward is not None}


def sha256_of_steps(steps: Sequence[Step]) -> str:
    """One hash over the replies of a trajectory."""
    return sha256("\x1f".join(step.action for step in steps).encode()).hexdigest()


class IprConfig(PlayConfig):
    """Configuration of `qguide ipr`.

    Attributes:
        policy: the agent: "embedded", a folder, "upstream:NAME" or an address with "#" and a model.
        scorer: the policy whose roll-outs give step rewards, named as `policy` is; the paper's is
            the SFT policy in every iteration. "" for `policy` itself.
        reward_model: "embedded" or the folder of a Q model that gives step rewards in place of the
            scorer's roll-outs (table 5). Its Q has to be a mean outcome: train it on groups of the
            scorer's roll-outs, with labels discounted by 1.
        expert: run folders of `collect`; each task's best trajectory is explored, and a task
            without any is not played.
        earlier: run folders of earlier iterations, whose step rewards of the expert are used again.
        contrast: how the agent explores, and how large its mistakes are.
        rewards: the roll-outs that give a step its reward, and the limits of every episode.
    """

    policy_fields = ("policy", "scorer")
    q_field = "reward_model"

    policy: str = EMBEDDED
    scorer: str = ""
    reward_model: str = ""
    expert: tuple[Path, ...] = Field(min_length=1)
    earlier: tuple[Path, ...] = ()
    contrast: Contrast = Contrast()
    rewards: StepRewards = StepRewards()

    def models(self) -> dict[str, str]:
        """See `PlayConfig`; iterations are compared by what scores, also where it is the agent."""
        return super().models() | {"scorer": self.scorer or self.policy}


def run_ipr(
    config: IprConfig,
    *,
    policy: BatchPolicy | HostedPolicy | None = None,
    rollouts: BatchPolicy | HostedPolicy | None = None,
    q_model: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Explore the tasks that have no row yet, then write the pairs of all tasks."""
    weights = hashes_of(config, Models(policy, rollouts, q_model))
    for folder in config.earlier:
        _require_same_scorer(folder, config, weights)
    return play_job(Ipr, config, policy=policy, rollouts=rollouts, q_model=q_model, console=console)


def _require_same_scorer(folder: Path, config: IprConfig, weights: Mapping[str, str]) -> None:
    before = _config_in(folder)
    now = config.model_dump(mode="json")
    hashes = ("scorer_sha256", "reward_model_sha256")
    old = _identity_of_scorer(before) | {name: before.get(name) for name in hashes}
    new = _identity_of_scorer(now) | {name: weights[name] for name in hashes}
    for name in new | old:
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{name} was {old.get(name)!r} in {folder} and is {new.get(name)!r}; step rewards "
                "are comparable only by one scorer: use the same one, or leave the run out of "
                "earlier"
            )


def _config_in(folder: Path) -> dict[str, Any]:
    path = RunFolder(folder).config
    try:
        config: dict[str, Any] = json.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name run folders of `qguide ipr` in earlier"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}); leave the run out of earlier") from error
    return config


def _identity_of_scorer(config: Mapping[str, Any]) -> dict[str, object]:
    """Fields that decide the scorer's rewards; a hosted scorer has no hash beside them."""
    name = config.get("scorer") or config.get("policy") or ""
    fields = {"rewards": config.get("rewards")}
    if not is_hosted(name):
        return fields
    table = config.get("upstreams", {}).get(name.removeprefix(PREFIX), {})
    return fields | {"scorer": name} | {f"scorer's {each}": table.get(each) for each in ROW_FIELDS}


class Ipr(Method[IprConfig]):
    """Explores each task along its expert's trajectory, then makes pairs of the mistakes."""

    job, unit, rate, file = "ipr", "trajectories", "rollouts", EXPLORED

    def __init__(self, config: IprConfig, run: Rollouts, models: Models) -> None:
        super().__init__(config, run, models)
        run.require_branches()
        q_model = models.q_model
        self._reward_model = RewardModel(q_model.reads_observation) if q_model else None
        self._experts = best_trajectories(config.expert)
        self._known = _expert_rewards(config.earlier)

    def finished(self) -> set[str]:
        """Ids of the tasks that are finished or have no trajectory of the expert."""
        tasks = {task.id for task in self.run.suite.tasks}
        without = tasks - self._experts.keys()
        if without == tasks:
            raise ConfigError(
                f"none of the {len(tasks)} tasks has a trajectory in expert = "
                f"{', '.join(map(str, self.config.expert))}; name the games of that run in "
                "[environment]"
            )
        return without | finished_task_ids(self.run.folder.path / EXPLORED)

    def play(self, playable: PlayableTask) -> RolloutTask[Played]:
        """Explore one task."""
        config, task_id = self.config, playable.task.id
        trajectory = self._experts[task_id]
        expert = trajectory.to_steps()
        contrasted = yield from contrast_task(
            playable.game(config.seed),
            first_observation=_first_observation(trajectory),
            expert=expert,
            mistakes=trajectory.mistakes,
            options=config.contrast,
            rewards=config.rewards,
            known=self._known.get((task_id, sha256_of_steps(expert)), {}),
            reward_model=self._reward_model,
        )
        row = contrast_row(trajectory, contrasted, config, source=self.source)
        figures = {
            "episodes": contrasted.episodes,
            "rollouts": contrasted.rollouts,
            "completion_tokens": contrasted.completion_tokens,
        }
        return Played([row], figures)

    def derive(self) -> dict[str, float]:
        """Write the pairs of all explored tasks; returns their figures, see `figures_of`."""
        return _write_pairs(self.run.folder)


def _expert_rewards(folders: Sequence[Path]) -> dict[tuple[str, str], dict[int, float]]:
    """Step rewards of the expert from earlier iterations, by task and trajectory."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for folder in folders:
        for row in read_rows(folder / EXPLORED, ContrastRow):
            found.setdefault((row.task_id, row.expert_sha256), {}).update(row.known_rewards)
    return found


def _first_observation(trajectory: TrajectoryRow) -> str:
    return trajectory.messages[0 if trajectory.system is None else 1].content


def contrast_row(
    trajectory: TrajectoryRow, contrasted: Contrasted, config: IprConfig, *, source: str
) -> ContrastRow:
    """An explored trajectory as a row."""
    expert = trajectory.to_steps()
    compared = {d.step: d.comparison for d in contrasted.deviations if d.comparison is not None}
    return ContrastRow(
        task_id=trajectory.task_id,
        kind=trajectory.kind,
        environment=trajectory.environment,
        expert_sha256=sha256_of_steps(expert),
        expert_outcome=trajectory.outcome_reward,
        expert_rewards=tuple(map(contrasted.expert_rewards.get, range(len(expert)))),
        own_outcome=contrasted.own[-1].reward if contrasted.own else None,
        own_rewards=tuple(
            compared[t].own_reward if t in compared else None for t in range(len(expert))
        ),
        deviations=len(contrasted.deviations),
        pairs=tuple(pairs_of(trajectory, contrasted, tau=config.contrast.tau)),
        source=source,
        seed=config.seed,
        rollouts=contrasted.rollouts,
        completion_tokens=contrasted.completion_tokens,
    )


def pairs_of(
    trajectory: TrajectoryRow, contrasted: Contrasted, *, tau: float
) -> Iterator[PreferenceRow]:
    """The whole trajectory if the agent ends worse, then the steps after each of its mistakes.

    A mistake in the first state makes no pair of its own: what follows it is the whole trajectory.
    """
    expert, errs = trajectory.to_steps(), trajectory.mistakes
    own, outcome = contrasted.own, trajectory.outcome_reward
    if own and own[-1].reward < outcome and len(errs) < len(expert):
        yield preference_row(
            trajectory,
            ("trajectory", "contrast"),
            state=_state(trajectory, ()),
            chosen=scored_messages(expert),
            rejected=scored_messages(own),
            values=(outcome, own[-1].reward),
            candidates=2,
            mistakes=errs,
        )
    for deviation in contrasted.deviations:
        comparison, begin = deviation.comparison, deviation.step
        if begin and comparison is not None and comparison.is_mistake(tau=tau):
            yield preference_row(
                trajectory,
                ("suffix", "contrast"),
                state=_state(trajectory, expert[:begin]),
                chosen=scored_messages(expert[begin:]),
                rejected=scored_messages(deviation.steps),
                values=(comparison.expert_reward, comparison.own_reward),
                candidates=2,
                mistakes=[number - begin for number in errs if number >= begin],
            )


def _state(trajectory: TrajectoryRow, steps: Sequence[Step]) -> History:
    """The chat after some steps of the expert."""
    system = messages_of(trajectory.messages[: 0 if trajectory.system is None else 1])
    return (*system, *path_history(_first_observation(trajectory), steps))


def _write_pairs(folder: RunFolder) -> dict[str, float]:
    """Write the pairs of all explored tasks; returns their figures."""
    explored = sorted(read_rows(folder.path / EXPLORED, ContrastRow), key=lambda row: row.task_id)
    with rows_at_once(folder.rows) as writer:
        for row in explored:
            for pair in row.pairs:
                writer.write(pair)
    return figures_of(explored)


def figures_of(rows: Sequence[ContrastRow]) -> dict[str, float]:
    """Pairs and step rewards of explored trajectories.

    Returns:
        `own_outcome`: mean outcome of the agent from the start. `expert_reward` and `own_reward`:
        mean step reward of the two actions, over the states where they are compared.
    """
    pairs = [pair for row in rows for pair in row.pairs]
    levels = Counter(pair.level for pair in pairs)
    compared = [
        (expert, own)
        for row in rows
        for expert, own in zip(row.expert_rewards, row.own_rewards, strict=True)
        if expert is not None and own is not None
    ]
    means: Mapping[str, list[float]] = {
        "own_outcome": [row.own_outcome for row in rows if row.own_outcome is not None],
        "expert_reward": [expert for expert, _ in compared],
        "own_reward": [own for _, own in compared],
        "mean_gap": [pair.gap for pair in pairs],
    }
    return {
        "tasks": len(rows),
        "steps": sum(len(row.expert_rewards) for row in rows),
        "deviations": sum(row.deviations for row in rows),
        "compared": len(compared),
        "pairs": len(pairs),
        "suffix_pairs": levels["suffix"],
        "trajectory_pairs": levels["trajectory"],
        **{name: sum(values) / len(values) for name, values in means.items() if values},
    }
