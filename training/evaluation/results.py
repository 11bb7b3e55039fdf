"""Figures of `results.json`, computed from episodes by pure functions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.row_files import regular
from qguide.training.data.runs import read_rows
from qguide.training.evaluation.records import (
    COMPARED,
    DETERMINISTIC,
    GUIDED,
    PEEKING,
    Comparison,
    EpisodeRow,
    MethodName,
    MethodRow,
    MethodSummary,
    Results,
    in_order,
)
from qguide.training.evaluation.statistics import bootstrap_interval, sign_flip_p_value, wilson_interval
from qguide.training.rollouts.episode import derived_seed

NOTES = {
    "ci95 of rows": "Wilson score interval of success_rate over tasks",
    "ci95 of summary": "percentile bootstrap of success_rate over tasks, seeds averaged per task; "
    "reward_ci95 is that of mean_reward",
    "comparisons": "difference of mean reward over the tasks and seeds that both methods played; "
    "ci95: percentile bootstrap over tasks; p_value: two-sided sign-flip permutation test of the "
    "tasks' mean differences (10,000 flips), in which a task's seeds count as one cluster",
    "greedy": "deterministic: played once per task, the same episodes in every seed's row",
    "best-of-n": "peeks: it chooses by the true reward among whole trajectories, which it draws "
    "while they have fewer completion tokens than q-guided-n's of the same task and seed, or "
    "q-guided's where q-guided-n is not played; one that would exceed them is left out, but for "
    "the first, whose excess is in excess_tokens; without either it draws as many trajectories as "
    "candidates",
    "q-guided-n": "peeks: it chooses by the true reward among N guided trajectories, the first of "
    "which is q-guided's; N is guided_trajectories",
    "adaptive": "q-guided that draws until Q is above the previous step's, at most M candidates",
    "q-guided-aug": "q-guided whose candidates after the first are drawn under paraphrases of the "
    "task; its tokens do not include those of the paraphrases, which are drawn once per task",
    "best-of-n-aug": "best-of-n whose trajectories after the first are drawn under paraphrases of "
    "the task, with the same budget; peeks like best-of-n",
    "verifier-best-of-n": "the trajectory that the Q model values most, among the first ones that "
    "best-of-n draws with the same budget",
    "q-beam": "a beam search whose branches are replayed episodes; its tokens are those of every "
    "candidate of every beam, and replays cost none",
    "lats": "peeks: a tree search that sees the true outcome of each trajectory and ends with the "
    "first that succeeds; its tokens are those of every candidate of every expansion",
    "reflexion": "peeks: it sees whether a trial succeeded; a trial that failed is followed by a "
    "note of the policy, which the next trial's prompt holds; the last trial counts, with the "
    "tokens of all trials and notes",
    "random-distinct": "the null hypothesis of an argmax over the distinct candidates; "
    "random-of-m is twice as likely to take a reply that was drawn twice",
    "q-guided": "steps whose candidates are all the same are not scored",
    "q-posterior": "q-guided's candidates, chosen by Q / tau + log prior; config has tau and prior",
    "wall_time_s": "an episode's share of the run: of a sampling batch by the tokens generated for "
    "it, of a scoring batch by its tokens that went through the trunk, and the time of its "
    "environment calls, including the wait for a busy worker (calls in threads overlap, so the sum "
    "may exceed wall_clock_s); the time to load a game is charged to no method",
}

Key = tuple[MethodName, int | None, str]


def latest(rows: Iterable[EpisodeRow]) -> dict[Key, EpisodeRow]:
    """The last row written for each (method, seed, task)."""
    return {(row.method, row.seed, row.task_id): row for row in rows}


def method_rows(episodes: Mapping[Key, EpisodeRow], seeds: Sequence[int]) -> list[MethodRow]:
    """One row per method and seed, in the order of `in_order`."""
    rows = []
    for method in _methods_of(episodes):
        for seed in seeds:
            played = _episodes_of(episodes, method, seed)
            if played:
                rows.append(_method_row(method, seed, played))
    return rows


def _method_row(method: MethodName, seed: int, played: Sequence[EpisodeRow]) -> MethodRow:
    count = len(played)
    successes = sum(row.success for row in played)
    decisions = max(1, sum(row.decisions for row in played))
    tokens = sum(row.completion_tokens for row in played)
    return MethodRow(
        method=method,
        seed=seed,
        mean_reward=sum(row.reward for row in played) / count,
        success_rate=successes / count,
        ci95=wilson_interval(successes, count),
        episodes=count,
        completion_tokens=tokens,
        completion_tokens_per_episode=tokens / count,
        excess_tokens=sum(row.excess_tokens for row in played),
        scored_tokens=sum(row.scored_tokens for row in played),
        distinct_candidates_per_step=sum(row.distinct_candidates for row in played) / decisions,
        invalid_action_rate=sum(row.invalid_actions for row in played) / decisions,
        steps_per_episode=sum(row.steps for row in played) / count,
        too_long_episodes=sum(row.too_long for row in played),
        wall_time_s=sum(row.wall_time_s for row in played),
        policy_time_s=sum(row.policy_time_s for row in played),
        scorer_time_s=sum(row.scorer_time_s for row in played),
        environment_time_s=sum(row.environment_time_s for row in played),
        peeks=method in PEEKING,
        deterministic=method in DETERMINISTIC,
    )


def summarise(episodes: Mapping[Key, EpisodeRow], seeds: Sequence[int]) -> list[MethodSummary]:
    """One row per method, its seeds averaged."""
    return [
        _summary(method, [_episodes_of(episodes, method, seed) for seed in seeds]) for method in _methods_of(episodes)
    ]


def _summary(method: MethodName, played_by_seed: Sequence[Sequence[EpisodeRow]]) -> MethodSummary:
    played = [row for rows in played_by_seed for row in rows]
    by_task = _means((row.task_id, float(row.success)) for row in played)
    rewards = _means((row.task_id, row.reward) for row in played)
    return MethodSummary(
        method=method,
        seeds=sum(bool(rows) for rows in played_by_seed),
        tasks=len(by_task),
        mean_reward=sum(row.reward for row in played) / len(played),
        success_rate=sum(row.success for row in played) / len(played),
        ci95=bootstrap_interval(list(by_task.values()), _generator("summary", method)),
        reward_ci95=bootstrap_interval(list(rewards.values()), _generator("reward", method)),
        completion_tokens_per_episode=sum(r.completion_tokens for r in played) / len(played),
        success_by_kind=_means((row.kind, float(row.success)) for row in played),
        peeks=method in PEEKING,
    )


class PlayedMethod(NamedTuple):
    """A method, and the episodes of an evaluation that played it."""

    method: MethodName
    episodes: Mapping[Key, EpisodeRow]

    def reward(self, seed: int, task_id: str) -> float | None:
        """Outcome reward of one episode; None if it was not played."""
        row = self.episodes.get(_key(self.method, seed, task_id))
        return None if row is None else row.reward


def compare(episodes: Mapping[Key, EpisodeRow], seeds: Sequence[int]) -> list[Comparison]:
    """Compare `q-guided` and `q-posterior` with every other method, and the others with the first baseline.

    That is the first one that was played, in the order of `in_order`, and that Q does not guide.
    """
    played = _methods_of(episodes)
    pairs = [("q-guided", other) for other in played if other != "q-guided"]
    pairs += [("q-posterior", other) for other in played if other not in COMPARED]
    baseline = next((method for method in played if method not in GUIDED), "")
    pairs += [(other, baseline) for other in played if baseline and other not in (*COMPARED, baseline)]
    of = {method: PlayedMethod(method, episodes) for method in {*COMPARED, *played}}
    found = (compare_pair(of[first], of[second], seeds) for first, second in pairs)
    return [comparison for comparison in found if comparison is not None]


def compare_pair(first: PlayedMethod, second: PlayedMethod, seeds: Sequence[int]) -> Comparison | None:
    """Compare two methods on the tasks that both played; None if there are no such tasks."""
    differences = _task_differences(first, second, seeds)
    if not differences:
        return None
    other = second.method
    return Comparison(
        method=first.method,
        other=other,
        difference=sum(differences) / len(differences),
        ci95=bootstrap_interval(differences, _generator("difference", other)),
        p_value=sign_flip_p_value(differences, _generator("flips", other)),
        tasks=len(differences),
        seeds=len(seeds),
    )


def _task_differences(first: PlayedMethod, second: PlayedMethod, seeds: Sequence[int]) -> list[float]:
    """Difference in reward, averaged over seeds, of each task that both played under every seed."""
    differences = []
    for task_id in sorted({row.task_id for row in first.episodes.values()}):
        pairs = [(first.reward(seed, task_id), second.reward(seed, task_id)) for seed in seeds]
        rewards = [a - b for a, b in pairs if a is not None and b is not None]
        if len(rewards) == len(seeds):
            differences.append(sum(rewards) / len(rewards))
    return differences


def kinds_of(episodes: Mapping[Key, EpisodeRow]) -> dict[str, int]:
    """Number of tasks of each goal type."""
    kinds = {row.task_id: row.kind for row in episodes.values()}
    return dict(sorted(Counter(kinds.values()).items()))


def best_of_n_curve(episodes: Mapping[Key, EpisodeRow]) -> list[tuple[float, float]]:
    """Tokens per episode and success rate of the best of the first 1, 2, 3 … trajectories.

    An episode with fewer trajectories counts with all that it has.
    """
    played = [row for row in episodes.values() if row.trajectories]
    longest = max((len(row.trajectories) for row in played), default=0)
    curve = []
    for n in range(1, longest + 1):
        first = [row.trajectories[:n] for row in played]
        tokens = sum(t.completion_tokens for drawn in first for t in drawn)
        won = sum(max(drawn, key=lambda t: t.reward).success for drawn in first)
        curve.append((tokens / len(played), won / len(played)))
    return curve


def _methods_of(episodes: Mapping[Key, EpisodeRow]) -> list[MethodName]:
    return in_order({method for method, _, _ in episodes})


def _key(method: MethodName, seed: int, task_id: str) -> Key:
    return method, None if method in DETERMINISTIC else seed, task_id


def _episodes_of(episodes: Mapping[Key, EpisodeRow], method: MethodName, seed: int) -> list[EpisodeRow]:
    wanted = None if method in DETERMINISTIC else seed
    return [row for (m, s, _), row in episodes.items() if m == method and s == wanted]


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for name, value in values:
        groups[name].append(value)
    return {name: sum(group) / len(group) for name, group in sorted(groups.items())}


def _generator(*parts: str) -> np.random.Generator:
    """A generator whose seed depends on these parts only, so that figures are repeatable."""
    return np.random.default_rng(derived_seed("evaluation", *parts))


EPISODES: Final = "episodes.jsonl"
RESULTS: Final = "results.json"
_SPEED_ALONE: Final = frozenset({"processes"})
"""Fields of an environment that change how fast it is, and no episode."""


def read_episodes(run: Path) -> dict[Key, EpisodeRow]:
    """The last row of each (method, seed, task); empty if nothing has been played."""
    path = run / EPISODES
    return latest(read_rows(path, EpisodeRow)) if path.exists() else {}


def write_results(run: Path, results: Results) -> None:
    """Write the results as a whole or not at all."""
    unfinished = run / f"{RESULTS}.tmp"
    unfinished.write_text(results.model_dump_json(indent=2) + "\n", encoding="utf-8")
    unfinished.replace(run / RESULTS)


def read_results(run: Path) -> Results:
    """The results of a finished evaluation."""
    path = run / RESULTS
    try:
        return Results.model_validate_json(regular(path).read_bytes())
    except (OSError, ValidationError) as error:
        raise RecordError(f"{path} has no valid results; run `qguide evaluate` first") from error


def condition(results: Results, name: str) -> object:
    """A field of an evaluation's configuration, without what changes its speed alone."""
    value = results.config.get(name)
    if name == "environment" and isinstance(value, dict):
        return {key: value[key] for key in value if key not in _SPEED_ALONE}
    return value


def require_comparable(
    evaluations: Sequence[tuple[Path, Results]], *, has_to_agree: Callable[[str], bool], remedy: str
) -> None:
    """Check that evaluations agree with the first one."""
    first_run, first = evaluations[0]
    for run, other in evaluations[1:]:
        for name in filter(has_to_agree, sorted(first.config.keys() | other.config.keys())):
            here, there = condition(other, name), condition(first, name)
            if here != there:
                raise ConfigError(
                    f"{run} was evaluated with {name} = {here!r}, but {first_run} with {there!r}; {remedy}"
                )
