"""Methods that try before they choose, on the fake environment, with models that are rules."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.training.environment import StepResult
from qguide.training.environments.corridor import CorridorConfig, CorridorEnvironment
from qguide.training.environments.registry import environment_config
from qguide.training.evaluation.records import EpisodeRow, Results
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from tests.unit.training.jobs.test_evaluate import QUIET, Patient, Wanderer, rows_of, untimed


class Witness(Scorer):
    """Values what it has seen: an open door most, then a key in hand, a wall least."""

    name = "witness"
    reads_observation = True

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(self._value(r, answer[0].content) for answer in r.observations), 7) for r in requests]

    def _value(self, request: ScoreRequest, seen: str) -> float:
        if "open the door" in seen:
            return 1.0
        has_key = any("pick up" in m.content for m in request.history) or "pick up" in seen
        known = {m.content for m in request.history}
        return 0.5 * has_key + 0.1 * (seen not in known) - 0.1 * ("Nothing happens" in seen)


def evaluate(
    output: Path, *, scorer: Scorer | None = None, verifier: Scorer | None = None, tasks: int = 8, **changes: object
) -> Results:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=tasks),
        "max_steps": 12,
        "seeds": (0, 1),
        "candidates": 3,
        **changes,
    }
    return run_evaluate(
        EvaluateConfig.model_validate(values), policy=Wanderer(), scorer=scorer, verifier=verifier, console=QUIET
    )


def by_task(output: Path, method: str) -> dict[tuple[str, int | None], EpisodeRow]:
    return {(row.task_id, row.seed): row for row in rows_of(output) if row.method == method}


def test_a_verifier_that_recognises_success_finds_what_the_true_reward_finds(tmp_path: Path) -> None:
    evaluate(tmp_path, scorer=Witness(), methods=("verifier-best-of-n", "best-of-n"))
    peeking, verified = (by_task(tmp_path, method) for method in ("best-of-n", "verifier-best-of-n"))
    assert any(row.success for row in peeking.values())
    for key, row in verified.items():
        assert row.success == peeking[key].success
        assert len(row.trajectories) == 3
        assert row.completion_tokens == peeking[key].completion_tokens
        assert [t.steps for t in row.trajectories] == [t.steps for t in peeking[key].trajectories]
        best = max(row.trajectories, key=lambda t: t.values[0])
        assert row.reward == best.reward
        assert row.scored_tokens == 3 * 7
    assert not any(trajectory.values for row in peeking.values() for trajectory in row.trajectories)


def test_drawing_stops_at_a_value_that_is_high_enough(tmp_path: Path) -> None:
    methods = ("verifier-best-of-n",)
    evaluate(tmp_path / "all", scorer=Witness(), methods=methods, trajectories=6)
    evaluate(tmp_path / "some", scorer=Witness(), methods=methods, trajectories=6, stop_at=1.0)
    every, some = (by_task(tmp_path / name, methods[0]) for name in ("all", "some"))
    assert {len(row.trajectories) for row in every.values()} == {6}
    assert {len(row.trajectories) for row in some.values()} > {1, 6}
    for key, row in some.items():
        assert row.success == every[key].success
        assert [t.values[-1] == 1.0 for t in row.trajectories[:-1]] == [False] * (len(row.trajectories) - 1)


def test_a_q_model_that_reads_at_the_action_may_value_trajectories(tmp_path: Path) -> None:
    evaluate(tmp_path, scorer=Patient(), methods=("verifier-best-of-n", "q-beam"))
    chosen = by_task(tmp_path, "verifier-best-of-n").values()
    first = [row.trajectories[0].success for row in chosen]
    assert sum(row.success for row in chosen) > sum(first)
    assert by_task(tmp_path, "q-beam")


def test_a_beam_search_finds_more_than_one_trajectory_and_counts_every_draw(tmp_path: Path) -> None:
    results = evaluate(tmp_path, scorer=Witness(), methods=("random-distinct", "q-beam"), tasks=20)
    chance, beam = (summary.success_rate for summary in results.summary)
    assert beam > chance + 0.3
    for row in by_task(tmp_path, "q-beam").values():
        depths = row.decisions
        assert row.steps <= depths
        assert 3 * 4 * depths <= row.completion_tokens <= 2 * 3 * 4 * depths
        assert row.distinct_candidates <= 2 * 3 * depths
        assert row.scored_tokens >= 7 * depths


def test_one_beam_that_reads_at_the_action_is_the_guided_agent(tmp_path: Path) -> None:
    evaluate(tmp_path, scorer=Patient(), methods=("q-guided", "q-beam"), beams=1)
    guided, beam = (by_task(tmp_path, method) for method in ("q-guided", "q-beam"))
    for key, row in beam.items():
        assert row.actions == guided[key].actions
        assert row.completion_tokens == guided[key].completion_tokens


def test_a_tree_search_of_one_trajectory_is_the_guided_agent(tmp_path: Path) -> None:
    evaluate(tmp_path, scorer=Patient(), methods=("q-guided", "lats"), lats_iterations=1)
    guided, tree = (by_task(tmp_path, method) for method in ("q-guided", "lats"))
    assert any(row.success for row in tree.values())
    for key, row in tree.items():
        assert row.actions == guided[key].actions
        assert row.completion_tokens == guided[key].completion_tokens


class Muddled(Patient):
    """Prefers what Patient would not do."""

    def _q(self, request: ScoreRequest, action: str) -> float:
        return -super()._q(request, action)


def test_a_tree_search_tries_again_until_it_succeeds(tmp_path: Path) -> None:
    results = evaluate(tmp_path, scorer=Muddled(), methods=("q-guided", "lats"), lats_iterations=8)
    peeks = {summary.method: summary.peeks for summary in results.summary}
    assert peeks == {"q-guided": False, "lats": True}
    guided, tree = (by_task(tmp_path, method) for method in ("q-guided", "lats"))
    assert sum(row.success for row in tree.values()) > sum(row.success for row in guided.values())
    for key, row in tree.items():
        first, *others = row.trajectories
        assert first.success == guided[key].success
        assert len(others) < 8
        assert not any(trajectory.success for trajectory in row.trajectories[:-1])
        assert row.success == row.trajectories[-1].success
    assert any(len(row.trajectories) > 1 and row.success for row in tree.values())


def test_searches_depend_neither_on_parallel_nor_on_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = CorridorEnvironment.step

    def thankless(self: CorridorEnvironment, action: str) -> StepResult:
        return replace(step(self, action), reward=0.0)

    methods = ("verifier-best-of-n", "q-beam")
    searches = (*methods, "lats")
    evaluate(tmp_path / "one", scorer=Witness(), methods=searches, seeds=(0,), parallel=1)
    evaluate(tmp_path / "many", scorer=Witness(), methods=searches, seeds=(0,), parallel=32)
    assert untimed(rows_of(tmp_path / "one")) == untimed(rows_of(tmp_path / "many"))
    with monkeypatch.context() as patch:
        patch.setattr(CorridorEnvironment, "step", thankless)
        evaluate(tmp_path / "unpaid", scorer=Witness(), methods=methods, seeds=(0,))
    for method in methods:
        paid, unpaid = (by_task(tmp_path / name, method) for name in ("one", "unpaid"))
        assert {key: row.actions for key, row in paid.items()} == {key: row.actions for key, row in unpaid.items()}


@pytest.mark.parametrize("method", ["lats", "q-beam", "verifier-best-of-n"])
def test_a_state_in_which_the_environment_gives_up_is_not_expanded(tmp_path: Path, method: str) -> None:
    lamps = {"name": "tests.support.own_environments:GymLamp", "count": 3}  # six steps at most
    environment = environment_config(lamps)
    results = evaluate(tmp_path, scorer=Patient(), methods=(method,), environment=environment, lats_iterations=3)
    assert results.failures == ()
    rows = rows_of(tmp_path)
    assert len(rows) == 2 * 3
    assert {trajectory.steps for row in rows for trajectory in row.trajectories} <= {6}
    assert {row.steps for row in rows} == {6}


def test_one_q_model_guides_and_another_verifies(tmp_path: Path) -> None:
    methods = ("q-guided", "verifier-best-of-n", "q-beam")
    evaluate(tmp_path / "both", scorer=Patient(), verifier=Witness(), methods=methods)
    evaluate(tmp_path / "alone", verifier=Witness(), methods=("q-beam",))
    both, alone = (by_task(tmp_path / name, "q-beam") for name in ("both", "alone"))
    assert {key: row.actions for key, row in both.items()} == {key: row.actions for key, row in alone.items()}
    guided = by_task(tmp_path / "both", "q-guided")
    for key, row in by_task(tmp_path / "both", "verifier-best-of-n").items():
        over = row.completion_tokens - guided[key].completion_tokens
        assert over <= 0 or len(row.trajectories) == 1
        assert row.excess_tokens == max(0, over)


@pytest.mark.parametrize(
    ("scorer", "verifier", "methods", "reason"),
    [
        (Witness(), None, ("q-guided",), "q-guided .*verifier"),
        (None, Patient(), ("q-beam",), "verifier .*qnet .*read_at = 'observation'"),
        (Patient(), Witness(), ("q-guided",), "verifier; .*lats .*q-beam"),
    ],
)
def test_a_q_model_in_the_wrong_place_is_refused(
    tmp_path: Path, scorer: Scorer | None, verifier: Scorer | None, methods: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        evaluate(tmp_path, scorer=scorer, verifier=verifier, methods=methods)
