"""The groups job: on corridors with a policy that wanders, on generated games with an expert."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.training.data.decision_groups import decisions_of, outcomes_differ, read_groups
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.trajectory import parse_action
from tests.support.listed_models import Speechless
from tests.support.wanderer import ACTIONS, Wanderer


class LikesRight(Scorer):
    """Q is 1 for going right."""

    name = "likes-right"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(float("right" in c.content) for c in r.candidates), 1) for r in requests]


def configure(output: Path, *, count: int = 6, **changes: object) -> GroupsConfig:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=count),
        "decisions": Decisions(max_steps=8, horizon=12),
        "continuation": Continuation(by="policy", repetitions=2),
        "parallel": 4,
    }
    return GroupsConfig.model_validate(values | changes)


def play(config: GroupsConfig, policy: Wanderer | Speechless | None = None) -> list[TreeRow]:
    quiet = Console(file=StringIO())
    run_groups(config, policy=policy or Wanderer("AB"), q_model=LikesRight(), console=quiet)
    rows = read_groups(config.output / "rows.jsonl")
    return sorted(rows, key=lambda row: row.task_id)


def test_every_draw_is_counted_under_its_action(tmp_path: Path) -> None:
    draws = (Draws(n=4, temperature=0.7), Draws(n=3, temperature=1.0))
    rows = play(configure(tmp_path, decisions=Decisions(draws=draws, max_steps=8, horizon=12)))
    decisions = [decision for row in rows for decision in decisions_of(row)]
    assert len(rows) == 6
    assert all(sum(c.count for c in decision.candidates) == 7 for decision in decisions)
    assert sum(row.completion_tokens for row in rows) == 3 * 7 * len(decisions)
    assert max(len(decision.candidates) for decision in decisions) == len(ACTIONS)


def test_each_candidate_is_played_on_as_often_as_asked_or_until_it_ends_the_episode(tmp_path: Path) -> None:
    rows = play(configure(tmp_path))
    choices = [d for row in rows for d in decisions_of(row) if len(d.candidates) > 1]
    candidates = [candidate for decision in choices for candidate in decision.candidates]
    for candidate in candidates:
        assert len(candidate.rollouts) == (1 if candidate.terminated else 2)
        for continuation in candidate.rollouts:
            assert continuation.terminated or continuation.steps == 12
            assert continuation.outcome_reward == float(continuation.terminated)
            assert not candidate.terminated or continuation.steps == 1
    assert any(len({k.steps for k in c.rollouts}) == 2 for c in candidates)


def test_no_continuation_outlives_the_limit_of_the_episode(tmp_path: Path) -> None:
    decisions = Decisions(max_steps=8, horizon=12, total_steps=10)
    rows = play(configure(tmp_path, decisions=decisions))
    cut_off = set()
    for row in rows:
        for step, decision in enumerate(decisions_of(row)):
            for candidate in decision.candidates if len(decision.candidates) > 1 else ():
                for continuation in candidate.rollouts:
                    assert step + continuation.steps <= 10
                    if not continuation.terminated:
                        cut_off.add(step + continuation.steps)
    assert cut_off == {10}


def test_a_run_is_not_resumed_under_another_total_limit(tmp_path: Path) -> None:
    play(configure(tmp_path))
    with pytest.raises(ConfigError, match=r": decisions\.total_steps was None .* 9;"):
        play(configure(tmp_path, decisions=Decisions(max_steps=8, horizon=12, total_steps=9)))


def test_a_total_limit_below_the_episodes_own_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"total_steps is 9, .*max_steps = 10 "):
        Decisions(max_steps=10, total_steps=9)


def test_outside_the_valued_share_the_taken_candidate_is_kept_with_the_episode_itself(tmp_path: Path) -> None:
    decisions = Decisions(draws=(Draws(n=6, temperature=0.7),), max_steps=8, horizon=12)
    whole = play(configure(tmp_path / "whole", decisions=decisions))
    some = decisions.model_copy(update={"valued_share": 0.4})
    rows = play(configure(tmp_path / "some", decisions=some))
    pairs = [
        (number, len(decisions_of(row)), d, other)
        for row, same in zip(rows, whole, strict=True)
        for number, (d, other) in enumerate(zip(decisions_of(row), decisions_of(same), strict=True))
    ]
    left_out = [pair for pair in pairs if len(pair[2].candidates) != len(pair[3].candidates)]
    assert 0.4 * len(pairs) < len(left_out) < 0.8 * len(pairs)
    for number, steps, decision, other in left_out:
        assert decision.candidates == (decision.taken,)
        assert decision.taken.action == other.taken.action
        assert decision.taken.rollouts[0].steps == steps - number


def test_rows_do_not_depend_on_how_many_are_played_at_once(tmp_path: Path) -> None:
    alone = play(configure(tmp_path / "alone", parallel=1))
    assert alone == play(configure(tmp_path / "together", parallel=6))
    assert alone != play(configure(tmp_path / "otherwise", seed=1))


def test_a_killed_run_is_resumed_without_losing_or_repeating_a_task(tmp_path: Path) -> None:
    undisturbed = Wanderer("AB")
    whole = play(configure(tmp_path / "whole", parallel=2), undisturbed)
    config = configure(tmp_path / "killed", parallel=2)
    with pytest.raises(KeyboardInterrupt):
        play(config, Wanderer("AB", dies_after=undisturbed.calls // 2))
    with (tmp_path / "killed" / "rows.jsonl").open("ab") as file:
        file.write(b'{"task_id": "corr')
    assert play(config) == whole
    with pytest.raises(ConfigError, match=r": continuation\.repetitions was 2 .* 3;"):
        play(configure(tmp_path / "killed", continuation=Continuation(by="policy", repetitions=3)))


def test_the_guided_episode_takes_the_candidate_of_highest_q(tmp_path: Path) -> None:
    draws = (Draws(n=3, temperature=0.7),)
    decisions = Decisions(draws=draws, go_on="guided", max_steps=8, horizon=12)
    rows = play(configure(tmp_path, qnet="any", decisions=decisions))
    taken = [
        (parse_action(d.taken.action), {parse_action(c.action) for c in d.candidates})
        for row in rows
        for d in decisions_of(row)
    ]
    assert all(("go right" in drawn) == (action == "go right") for action, drawn in taken)
    assert {action for action, _ in taken} > {"go right"}


def test_a_guided_episode_may_weigh_its_votes(tmp_path: Path) -> None:
    draws = (Draws(n=8, temperature=0.7),)
    decisions = Decisions(draws=draws, go_on="guided", tau=1e6, max_steps=4, horizon=12)
    rows = play(configure(tmp_path, qnet="any", decisions=decisions))
    made = [decision for row in rows for decision in decisions_of(row)]
    assert all(d.taken.count == max(c.count for c in d.candidates) for d in made)
    assert any(len({c.count for c in d.candidates}) > 1 for d in made)


def test_the_first_or_a_random_candidate_can_be_taken(tmp_path: Path) -> None:
    first = Decisions(go_on="first", max_steps=8, horizon=12)
    rows = play(configure(tmp_path / "first", decisions=first))
    assert {decision.chosen for row in rows for decision in decisions_of(row)} == {0}
    rows = play(configure(tmp_path / "random"))
    chosen = {decision.chosen for row in rows for decision in decisions_of(row)}
    assert chosen == {0, 1, 2, 3}


def test_an_expert_values_mistakes_by_the_way_back_from_them(tmp_path: Path) -> None:
    config = GroupsConfig(
        output=tmp_path,
        environment=AlfWorldConfig(first_seed=0, count=3),
        decisions=Decisions(draws=(Draws(n=4, temperature=1.0),), max_steps=6, horizon=60),
    )
    run_groups(config, policy=ExpertPolicy(), console=Console(file=StringIO()))
    rows = list(read_groups(tmp_path / "rows.jsonl"))
    decisions = [decision for row in rows for decision in decisions_of(row)]
    played = [c for d in decisions for c in d.candidates]
    won = [c for c in played if c.rollouts[0].outcome_reward == 1.0]
    assert len(won) > len(decisions)  # the expert finds the way back from most mistakes
    assert any(not candidate.valid for candidate in played)
    assert max(len({c.rollouts[0].steps for c in d.candidates}) for d in decisions) > 1


def test_a_corridor_has_no_expert(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'fake' .*expert; .*policy's"):
        play(configure(tmp_path, continuation=Continuation()))


def test_a_run_in_which_no_task_can_be_played_says_why(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailureError, match=r"corridor:0 .*room .*context"):
        play(configure(tmp_path), Speechless())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"qnet": "embedded"},
            "qnet is '', .*'policy'; .*\"guided\"|qnet is 'embedded', .*'random' .*'policy'; .*\"guided\"",
        ),
        ({"continuation": {"by": "guided"}}, "qnet is '', .*'guided'; .*\"guided\""),
        ({"continuation": {"by": "expert", "repetitions": 2}}, 'repetitions is 2, .*repetitions to 1, .*"policy"'),
        (
            {"continuation": {"by": "policy", "temperature": 0, "repetitions": 2}},
            'repetitions is 2, .*repetitions to 1, .*"policy"',
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        configure(tmp_path, **changes)


def rollouts_by_state(rows: Sequence[TreeRow]) -> list[tuple[bool, int]]:
    """For each state with a choice, whether its outcomes vary, and the roll-outs of its unfinished candidates."""
    found = []
    for decision in (one for row in rows for one in decisions_of(row) if len(one.candidates) > 1):
        varies = len({rollout.outcome_reward for node in decision.candidates for rollout in node.rollouts}) > 1
        found += [(varies, len(node.rollouts)) for node in decision.candidates if not node.terminated]
    return found


def test_more_is_played_on_only_where_outcomes_vary(tmp_path: Path) -> None:
    continuation = Continuation(by="policy", repetitions=5, first=2)
    rows = play(configure(tmp_path / "first", continuation=continuation))
    assert set(rollouts_by_state(rows)) == {(False, 2), (True, 5)}
    everywhere = play(configure(tmp_path / "all", continuation=Continuation(by="policy", repetitions=5)))
    assert {count for _, count in rollouts_by_state(everywhere)} == {5}
    assert [node.action for row in rows for node in row.nodes] == [n.action for row in everywhere for n in row.nodes]
    with pytest.raises(ValidationError, match=r"first is 5 .*repetitions 5;"):
        Continuation(by="policy", repetitions=5, first=5)


def test_states_are_valued_until_enough_differ_in_outcome(tmp_path: Path) -> None:
    def differing(rows: Sequence[TreeRow]) -> int:
        return sum(outcomes_differ(decision) for row in rows for decision in decisions_of(row))

    rows = play(configure(tmp_path, count=30, differing=3, parallel=1))
    assert (differing(rows), len(rows) < 30) == (3, True)
    assert len(play(configure(tmp_path, count=30, differing=3, parallel=1))) == len(rows)
    assert differing(play(configure(tmp_path, count=30, differing=6, parallel=1))) == 6
