"""Collect preference pairs by reward rising sampling (RRO algorithm 1), for `train-dpo`.

    qguide rro --config training/configs/alfworld/rro.toml

reads a policy. It plays one trajectory per task, and at each step draws actions until the reward of
one, the mean outcome of the policy's roll-outs after it, is at least that of the step before. With
`rising.stop = "never"` all steps have the same number of draws, which is the paper's ablation.

    explored.jsonl   one row per task: every draw with its roll-outs, as `groups` writes them
    rows.jsonl       the pairs, all at once when the last task is done

The seed of a draw is derived from (seed, task, step, draw), so neither `parallel` nor a resume
changes a row, and the draws of the two rules begin alike.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

from qguide.qnet.records import TreeRow, rows_of
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.preferences import PairSource, PreferenceRow, preference_row
from qguide.training.data.runs import EXPLORED, rows_at_once
from qguide.training.exploration.decision_groups import decided_row
from qguide.training.exploration.rising import THIRDS, Rising, explore_rising, extreme_pair, rising_shares, rollout_rows
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.rollouts.harness import PlayableTask
from qguide.training.rollouts.method import Method, MethodConfig, PlayedTask, play_job
from qguide.training.rollouts.models import EMBEDDED
from qguide.training.rollouts.rollout import RolloutTask


class RroConfig(MethodConfig):
    """Configuration of `qguide rro`.

    Attributes:
        policy: the policy that draws and rolls out: "embedded", a folder, "upstream:NAME" or an
            address with "#" and a model.
        scorer: the policy that rolls out in place of `policy`, named as it is, so that the step
            rewards of several agents can be compared; "" for `policy` itself, the paper's.
        rising: the draws of a step.
        rewards: the roll-outs that give a step its reward, and the limits of every episode. The
            paper does not state their number (m); 5 is IPR's.
    """

    policy_fields = ("policy", "scorer")

    policy: str = EMBEDDED
    scorer: str = ""
    rising: Rising = Rising()
    rewards: StepRewards = StepRewards()


class Rro(Method[RroConfig]):
    """Explores each task, then makes pairs of the draws of each step."""

    job, unit, rate, file = "rro", "trajectories", "rollouts", EXPLORED
    needs_branches = True

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Explore one task."""
        config = self.config
        game = playable.game(config.seed)
        explored = yield from explore_rising(game, config.rising, config.rewards, source=self.source)
        row = decided_row(playable.task, config.environment.name, playable.environment.chat.system, explored)
        row = row.model_copy(update={"rollouts": rollout_rows(explored.start)})
        tokens = explored.completion_tokens + explored.rollout_tokens
        return PlayedTask([row], {"rollouts": _rollouts_of(row), "completion_tokens": tokens})

    def derive(self) -> dict[str, float]:
        """Write the pairs of all explored tasks; returns their figures, see `figures_of`."""
        source: PairSource = "rising" if self.config.rising.stop == "rising" else "fixed"
        explored = sorted(read_groups(self.run.folder.path / EXPLORED), key=lambda row: row.task_id)
        pairs = [pair for row in explored for pair in pairs_of(row, source)]
        with rows_at_once(self.run.folder.rows) as writer:
            writer.write(*pairs)
        mean_gap = {"mean_gap": sum(pair.gap for pair in pairs) / len(pairs)} if pairs else {}
        return {"pairs": len(pairs), **mean_gap, **figures_of(explored)}


run_rro = partial(play_job, Rro)


def _rollouts_of(row: TreeRow) -> int:
    return len(row.rollouts) + sum(len(node.rollouts) for node in row.nodes)


def pairs_of(row: TreeRow, source: PairSource) -> Iterator[PreferenceRow]:
    """The best and the worst draw of each step of a trajectory, where they differ."""
    for decision in decisions_of(row):
        candidates = decision.candidates
        outcomes = [candidate.outcome for candidate in candidates]
        if pair := extreme_pair(outcomes):
            yield preference_row(
                row,
                ("step", source),
                state=rows_of(decision.history),
                chosen=(candidates[pair.better].message,),
                rejected=(candidates[pair.worse].message,),
                values=(outcomes[pair.better], outcomes[pair.worse]),
                candidates=sum(candidate.count for candidate in candidates),
            )


def figures_of(rows: Sequence[TreeRow]) -> dict[str, float]:
    """Cost and trend of explored trajectories.

    Returns:
        `draws_per_step`: the paper's cost, candidates explored per step. `step_reward`: mean reward
        of the steps that the trajectories took. `rising_initial`,
        `rising_middle`, `rising_final`: share of the trajectories' steps whose reward rises, by
        third (table 2); a third without steps has no figure.
    """
    taken = [node for row in rows for node in row.nodes if node.taken]
    draws = sum(node.count for row in rows for node in row.nodes)
    figures: dict[str, float] = {"tasks": len(rows), "steps": len(taken), "draws": draws}
    if taken:
        figures["draws_per_step"] = draws / len(taken)
        figures["step_reward"] = fmean(node.outcome for node in taken)
    counts = [rising_shares(taken_rewards(row)) for row in rows]
    for number, name in enumerate(THIRDS):
        if steps := sum(count[number].steps for count in counts):
            rising = sum(count[number].rising for count in counts)
            figures[f"rising_{name}"] = rising / steps
    return figures


def taken_rewards(row: TreeRow) -> list[float]:
    """Reward of the task itself, then of each step that the trajectory took."""
    start = [rollout.outcome_reward for rollout in row.rollouts]
    return [sum(start) / len(start), *(node.outcome for node in row.nodes if node.taken)]
