"""Figures computed from known episodes."""

from collections.abc import Sequence

import pytest

from qguide.training.evaluation.records import EpisodeRow, MethodName, TrajectoryCost
from qguide.training.evaluation.results import best_of_n_curve, compare, kinds_of, latest, method_rows, summarise


def episode(
    method: MethodName,
    task: str,
    reward: float,
    *,
    seed: int | None = 0,
    tokens: int = 10,
    trajectories: Sequence[tuple[float, int]] = (),
) -> EpisodeRow:
    return EpisodeRow(
        method=method,
        seed=seed,
        task_id=task,
        kind=task[0],
        reward=reward,
        success=reward >= 1.0,
        terminated=reward > 0,
        too_long=False,
        steps=4,
        decisions=4,
        distinct_candidates=8,
        invalid_actions=1,
        completion_tokens=tokens,
        scored_tokens=3,
        wall_time_s=0.5,
        policy_time_s=0.3,
        scorer_time_s=0.1,
        environment_time_s=0.1,
        actions=("a",) * 4,
        trajectories=tuple(
            TrajectoryCost(reward=r, success=r >= 1.0, steps=4, completion_tokens=t) for r, t in trajectories
        ),
    )


def test_a_row_sums_up_one_method_under_one_seed() -> None:
    episodes = latest(
        [
            episode("sample", "a1", 1.0, tokens=10),
            episode("sample", "a2", 0.4, tokens=20),
            episode("sample", "b1", 0.0, tokens=60),
            episode("sample", "a1", 0.0, seed=1),
        ]
    )
    first, second = method_rows(episodes, (0, 1))
    assert (first.seed, first.episodes, first.completion_tokens) == (0, 3, 90)
    assert first.completion_tokens_per_episode == 30
    assert first.success_rate == pytest.approx(1 / 3)
    assert first.mean_reward == pytest.approx(1.4 / 3)
    assert first.distinct_candidates_per_step == 2.0
    assert first.invalid_action_rate == 0.25
    assert first.wall_time_s == pytest.approx(1.5)
    assert second.episodes == 1
    assert kinds_of(episodes) == {"a": 2, "b": 1}


def test_a_deterministic_episode_stands_in_every_seeds_row() -> None:
    episodes = latest([episode("greedy", "a1", 1.0, seed=None)])
    rows = method_rows(episodes, (0, 1, 2))
    assert [row.seed for row in rows] == [0, 1, 2]
    assert all(row.deterministic and row.success_rate == 1.0 for row in rows)


def test_the_episode_written_last_counts() -> None:
    episodes = latest([episode("sample", "a1", 0.0), episode("sample", "a1", 1.0)])
    assert [row.reward for row in episodes.values()] == [1.0]


def test_differences_are_paired_and_leave_out_tasks_that_miss_a_seed() -> None:
    rows = [episode("greedy", f"a{i}", 0.0, seed=None) for i in range(3)]
    rows += [episode("q-guided", "a0", 1.0, seed=seed) for seed in (0, 1)]
    rows += [episode("q-guided", "a1", float(seed), seed=seed) for seed in (0, 1)]
    rows += [episode("q-guided", "a2", 1.0, seed=0)]
    (comparison,) = compare(latest(rows), (0, 1))
    assert (comparison.other, comparison.tasks, comparison.seeds) == ("greedy", 2, 2)
    assert comparison.difference == pytest.approx(0.75)


def test_every_method_is_compared_with_the_first_baseline() -> None:
    won = {"sample": 0.5, "random-of-m": 0.25, "q-guided": 1.0, "lats": 0.0, "my:own": 0.75, "adaptive": 1.0}
    rows = [episode(method, f"a{i}", reward, seed=0) for method, reward in won.items() for i in range(2)]
    found = {(one.method, one.other): one.difference for one in compare(latest(rows), (0,))}
    assert found == {("q-guided", other): 1.0 - reward for other, reward in won.items() if other != "q-guided"} | {
        (method, "sample"): won[method] - 0.5 for method in ("random-of-m", "adaptive", "lats", "my:own")
    }
    assert not compare(latest(row for row in rows if row.method == "adaptive"), (0,))


def test_a_summary_averages_seeds_and_splits_by_kind() -> None:
    rows = [episode("sample", "a1", float(seed), seed=seed) for seed in (0, 1)]
    rows += [episode("sample", "b1", 1.0, seed=seed) for seed in (0, 1)]
    (summary,) = summarise(latest(rows), (0, 1))
    assert (summary.success_rate, summary.seeds, summary.tasks) == (0.75, 2, 2)
    assert summary.success_by_kind == {"a": 0.5, "b": 1.0}
    assert summary.ci95[0] <= 0.75 <= summary.ci95[1]


def test_the_curve_of_best_of_n_rises_with_the_trajectories_that_were_drawn() -> None:
    episodes = latest(
        [
            episode("best-of-n", "a1", 1.0, trajectories=[(0.0, 10), (1.0, 20)]),
            episode("best-of-n", "a2", 1.0, trajectories=[(1.0, 30)]),
        ]
    )
    assert best_of_n_curve(episodes) == [(20.0, 0.5), (30.0, 1.0)]
