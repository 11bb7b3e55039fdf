"""The whole evaluation on the fake environment, with a policy and a scorer that are rules."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.types import Candidate, Message, SampleRequest, Scorer, ScoreRequest, ScoreResult
from qguide.training.data.runs import read_rows
from qguide.training.environment import StepResult, Task
from qguide.training.environments.corridor import CorridorConfig, CorridorEnvironment, CorridorSuite
from qguide.training.evaluation.records import DEFAULT_METHODS, EpisodeRow, MethodName, Results
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.trajectory import parse_action, react_reply
from tests.support.documents import blocks_of

ACTIONS = ("go left", "go right", "take key", "open door")


class Wanderer:
    """Draws any action; greedily it always goes right."""

    name = "wanderer"

    def __init__(self) -> None:
        self.requests = 0

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.requests += len(requests)
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        sampling = request.sampling
        rng = Random(sampling.seed)
        cold = [sampling.temperature == 0 or (sampling.first_greedy and i == 0) for i in range(request.n)]
        actions = ["go right" if c else rng.choice(ACTIONS) for c in cold]
        return [Candidate(Message("assistant", react_reply("Hm.", a)), 4) for a in actions]


class Patient(Scorer):
    """Prefers actions with an effect: keys and doors first, then away from the last wall."""

    name = "patient"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [
            ScoreResult(tuple(self._q(request, parse_action(c.content)) for c in request.candidates), 7)
            for request in requests
        ]

    def _q(self, request: ScoreRequest, action: str) -> float:
        seen = request.history[-1].content
        if action == "take key":
            return 1.0 if "a key" in seen else -1.0
        if action == "open door":
            return 1.0 if "a door" in seen else -1.0
        walls = [m.content for m in request.history if "Nothing happens" in m.content]
        return 0.5 if (action == "go left") == bool(len(walls) % 2) else 0.0


QUIET = Console(quiet=True)


def evaluate(output: Path, *, policy: Wanderer | None = None, tasks: int = 8, **changes: object) -> Results:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=tasks),
        "max_steps": 12,
        **changes,
    }
    return run_evaluate(
        EvaluateConfig.model_validate(values), policy=policy or Wanderer(), scorer=Patient(), console=QUIET
    )


def rows_of(output: Path) -> list[EpisodeRow]:
    return list(read_rows(output / "episodes.jsonl", EpisodeRow))


def test_baselines_are_played_where_they_are_named(tmp_path: Path) -> None:
    named = ("no-repeat", "self-consistency", "random-distinct")
    results = evaluate(tmp_path, methods=named, seeds=(0, 1))
    assert {row.method for row in results.rows} == set(named)
    assert results.complete
    invalid = {row.method: row.invalid_action_rate for row in results.rows}
    assert invalid["no-repeat"] < invalid["random-distinct"]


def test_a_method_of_ones_own_is_played_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [written] = [b.text for b in blocks_of("docs/methods/index.md") if "def shortest" in b.text]
    (tmp_path / "my_methods.py").write_text(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    results = evaluate(tmp_path / "run", methods=("my_methods:shortest", "random-of-m"), seeds=(0,))

    monkeypatch.delitem(sys.modules, "my_methods")
    assert [row.method for row in results.rows] == ["random-of-m", "my_methods:shortest"]
    assert results.complete
    replies = [reply for row in rows_of(tmp_path / "run") if ":" in row.method for reply in row.actions]
    longest = react_reply("Hm.", "open door")
    assert replies
    assert replies.count(longest) < len(replies) / 50, "one of 4^5 where each draw is as long"


@pytest.mark.parametrize(("tau", "same"), [(1e-9, True), (1e9, False)])
def test_a_method_of_ones_own_asks_for_q(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tau: float, same: bool
) -> None:
    [written] = [b.text for b in blocks_of("docs/methods/index.md") if "def soft_vote" in b.text]
    (tmp_path / "my_votes.py").write_text(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    results = evaluate(tmp_path / "run", methods=("my_votes:soft_vote", "q-guided"), seeds=(0,), tau=tau)

    monkeypatch.delitem(sys.modules, "my_votes")
    assert results.complete
    by_votes, by_q = ([row for row in rows_of(tmp_path / "run") if (":" in row.method) == own] for own in (True, False))
    assert sum(row.scored_tokens for row in by_votes) > 0
    actions = [sorted((row.task_id, row.actions) for row in rows) for rows in (by_votes, by_q)]
    assert (actions[0] == actions[1]) == same


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("shortest", "'shortest'; .*greedy, sample"),
        ("nowhere_at_all:shortest", "'nowhere_at_all:shortest' .*: ModuleNotFoundError"),
        ("json:__name__", r"'json:__name__' is 'json'; .*\(play, seed, task_id\)"),
    ],
)
def test_a_method_that_is_none_is_refused_before_anything_is_played(tmp_path: Path, method: str, said: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=said):
        evaluate(tmp_path / "run", methods=("greedy", method))
    assert not (tmp_path / "run").exists()


def untimed(rows: Sequence[EpisodeRow]) -> set[str]:
    times = {"wall_time_s", "policy_time_s", "scorer_time_s", "environment_time_s"}
    return {row.model_dump_json(exclude=times) for row in rows}


def test_every_method_and_seed_has_a_row_with_the_promised_fields(tmp_path: Path) -> None:
    evaluate(tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(row["method"], row["seed"]) for row in results["rows"]] == [
        (method, seed) for method in DEFAULT_METHODS for seed in (0, 1, 2)
    ]
    promised = {
        "mean_reward",
        "success_rate",
        "ci95",
        "episodes",
        "completion_tokens",
        "completion_tokens_per_episode",
        "scored_tokens",
        "distinct_candidates_per_step",
        "invalid_action_rate",
        "wall_time_s",
        "peeks",
    }
    for row in results["rows"]:
        assert promised <= row.keys()
        assert row["episodes"] == 8
        assert row["ci95"][0] <= row["success_rate"] <= row["ci95"][1]
        assert row["peeks"] == (row["method"] == "best-of-n")
    assert results["complete"]
    without_q = ("greedy", "sample", "random-of-m", "random-distinct")
    assert [(c["method"], c["other"]) for c in results["comparisons"]] == [
        *(("q-guided", other) for other in (*without_q, "q-posterior", "best-of-n")),
        *(("q-posterior", other) for other in (*without_q, "best-of-n")),
        *((method, "greedy") for method in (*without_q[1:], "best-of-n")),
    ]
    assert (tmp_path / "success_vs_tokens.png").read_bytes().startswith(b"\x89PNG")


def test_guidance_by_a_good_scorer_beats_a_random_choice_of_the_same_candidates(tmp_path: Path) -> None:
    results = evaluate(tmp_path, tasks=30, methods=("random-of-m", "q-guided"), seeds=(0,))
    random_choice, guided = (summary.success_rate for summary in results.summary)
    assert guided > random_choice + 0.3
    assert results.comparisons[0].difference == pytest.approx(guided - random_choice)
    assert results.comparisons[0].p_value < 0.01


def test_greedy_is_played_once_and_stands_in_every_seeds_row(tmp_path: Path) -> None:
    policy = Wanderer()
    results = evaluate(tmp_path, policy=policy, methods=("greedy",), tasks=2)
    assert [row.seed for row in rows_of(tmp_path)] == [None, None]
    assert [row.deterministic for row in results.rows] == [True] * 3
    assert len({row.completion_tokens for row in results.rows}) == 1


@pytest.mark.parametrize("guided", ["q-guided", "q-guided-n"])
def test_best_of_n_spends_at_most_what_the_guided_episodes_of_its_seed_spent(
    tmp_path: Path, guided: MethodName
) -> None:
    results = evaluate(tmp_path, methods=(guided, "best-of-n"))
    rows = {(row.method, row.seed, row.task_id): row for row in rows_of(tmp_path)}
    several = 0
    for (method, seed, task_id), row in rows.items():
        if method == "best-of-n":
            budget = rows[guided, seed, task_id].completion_tokens
            spent = sum(t.completion_tokens for t in row.trajectories)
            assert row.completion_tokens == spent
            assert row.excess_tokens == max(0, spent - budget)
            assert spent <= budget or len(row.trajectories) == 1
            assert row.reward == max(t.reward for t in row.trajectories)
            several += len(row.trajectories) > 1
    assert several > 10
    excess = dict.fromkeys((0, 1, 2), 0)
    for (_, seed, _), row in rows.items():
        excess[seed or 0] += row.excess_tokens
    reported = {row.seed: row.excess_tokens for row in results.rows if row.method == "best-of-n"}
    assert reported == excess


def test_best_of_n_gets_the_tokens_of_many_guided_episodes_where_they_are_played(tmp_path: Path) -> None:
    evaluate(tmp_path, methods=("q-guided", "q-guided-n", "best-of-n"), seeds=(0,))
    rows = {(row.method, row.task_id): row for row in rows_of(tmp_path)}
    spent = {
        method: sum(row.completion_tokens for (other, _), row in rows.items() if other == method)
        for method in ("q-guided", "q-guided-n", "best-of-n")
    }
    assert spent["q-guided"] < spent["best-of-n"] <= spent["q-guided-n"]


def test_best_of_n_without_guidance_draws_as_many_trajectories_as_candidates(tmp_path: Path) -> None:
    evaluate(tmp_path, methods=("best-of-n",), candidates=3)
    assert {len(row.trajectories) for row in rows_of(tmp_path)} == {3}


def test_the_best_of_n_guided_trajectories_is_at_least_the_guided_one(tmp_path: Path) -> None:
    results = evaluate(tmp_path, methods=("q-guided", "q-guided-n"), guided_trajectories=2)
    rows = {(row.method, row.seed, row.task_id): row for row in rows_of(tmp_path)}
    better = 0
    for (method, seed, task_id), row in rows.items():
        if method == "q-guided-n":
            guided = rows["q-guided", seed, task_id]
            first, second = row.trajectories
            assert (first.reward, first.completion_tokens) == (guided.reward, guided.completion_tokens)
            assert row.reward == max(first.reward, second.reward)
            assert row.completion_tokens == first.completion_tokens + second.completion_tokens
            better += row.reward > guided.reward
    assert better
    assert {row.method: row.peeks for row in results.rows} == {"q-guided": False, "q-guided-n": True}


def test_adaptive_m_spends_less_than_a_fixed_m_and_still_beats_chance(tmp_path: Path) -> None:
    results = evaluate(tmp_path, tasks=30, methods=("random-of-m", "q-guided", "adaptive"), seeds=(0,))
    chance, guided, adapted = results.summary
    assert [s.method for s in results.summary] == ["random-of-m", "q-guided", "adaptive"]
    assert adapted.success_rate > chance.success_rate + 0.2
    steps = {
        method: sum(row.steps for row in rows_of(tmp_path) if row.method == method)
        for method in ("q-guided", "adaptive")
    }
    per_step = adapted.completion_tokens_per_episode / steps["adaptive"]
    assert per_step < guided.completion_tokens_per_episode / steps["q-guided"]


def test_results_depend_neither_on_parallel_nor_on_the_order_of_tasks(tmp_path: Path) -> None:
    evaluate(tmp_path / "one", seeds=(0,), parallel=1)
    evaluate(tmp_path / "many", seeds=(0,), parallel=32)
    assert untimed(rows_of(tmp_path / "one")) == untimed(rows_of(tmp_path / "many"))


class Mortal(Wanderer):
    """Dies after some requests, as a killed process would."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.lives = lives

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        if self.requests > self.lives:
            raise KeyboardInterrupt
        return super().sample_batch(requests)


def test_a_killed_evaluation_goes_on_without_repeating_an_episode(tmp_path: Path) -> None:
    evaluate(tmp_path / "whole", seeds=(0,))
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path / "killed", policy=Mortal(150), seeds=(0,), parallel=3)
    before = rows_of(tmp_path / "killed")
    assert 0 < len(before) < 8 * 7
    results = evaluate(tmp_path / "killed", seeds=(0,), parallel=5)
    after = rows_of(tmp_path / "killed")
    assert after[: len(before)] == before
    assert len(after) == 8 * 7
    assert results.complete
    assert untimed(after) == untimed(rows_of(tmp_path / "whole"))


def test_a_finished_evaluation_asks_no_model_again(tmp_path: Path) -> None:
    first = evaluate(tmp_path, seeds=(0,))
    idle = Wanderer()
    again = evaluate(tmp_path, policy=idle, seeds=(0,))
    assert idle.requests == 0
    assert (again.rows, again.comparisons) == (first.rows, first.comparisons)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    evaluate(tmp_path, methods=("greedy",))
    with pytest.raises(ConfigError, match="candidates"):
        evaluate(tmp_path, methods=("greedy",), candidates=2)


def test_an_engine_that_fails_costs_its_episodes_and_a_resume_plays_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = CorridorSuite.make

    def fragile(self: CorridorSuite, task: Task) -> CorridorEnvironment:
        if task.id == "corridor:3":
            raise EnvironmentFailureError("corridor:3 has collapsed")
        return make(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(CorridorSuite, "make", fragile)
        results = evaluate(tmp_path, seeds=(0,))
    assert not results.complete
    assert {failure.task_id for failure in results.failures} == {"corridor:3"}
    assert {row.episodes for row in results.rows} == {7}
    metrics = list(map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert metrics == [failure.model_dump() for failure in results.failures]
    assert evaluate(tmp_path, seeds=(0,)).complete


def test_the_guided_agent_plays_the_same_whatever_the_reward_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = CorridorEnvironment.step

    def thankless(self: CorridorEnvironment, action: str) -> StepResult:
        return replace(step(self, action), reward=0.0)

    evaluate(tmp_path / "paid", methods=("q-guided",), seeds=(0,))
    with monkeypatch.context() as patch:
        patch.setattr(CorridorEnvironment, "step", thankless)
        results = evaluate(tmp_path / "unpaid", methods=("q-guided",), seeds=(0,))
    paid, unpaid = (
        {(row.task_id, row.seed): row.actions for row in rows_of(tmp_path / name)} for name in ("paid", "unpaid")
    )
    assert paid == unpaid
    assert results.summary[0].mean_reward == 0.0


def test_the_q_model_that_ships_is_warned_of_in_other_environments(tmp_path: Path) -> None:
    shown = StringIO()
    values = {"output": tmp_path, "environment": CorridorConfig(count=1), "methods": ["q-guided"], "max_steps": 1}
    run_evaluate(EvaluateConfig.model_validate(values), policy=Wanderer(), console=Console(file=shown, width=300))
    assert "qnet is 'embedded', which has learned alfworld alone, not fake" in shown.getvalue()
