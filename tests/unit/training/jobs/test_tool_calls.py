"""Jobs in an environment whose actions are tool calls, with a policy behind an upstream."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Message, Scorer, ScoreRequest, ScoreResult
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.data.decision_groups import GroupLabels, decisions_of, read_groups
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.environments.intercode_sql.bundle import INTERCODE_SQL_TOOLS, TOOL_SYSTEM, InterCodeSqlToolsConfig
from qguide.training.environments.intercode_sql.episode import SQL_TOOL
from qguide.training.evaluation.choice_regret import PolicyDraws, ScoredEpisodeRow
from qguide.training.evaluation.records import EpisodeRow
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.jobs.label import LabelConfig, run_label
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.rollouts.hosted import HostedModel
from tests.support.serving import serving_app
from tests.support.sql_upstream import GOLD, MODEL, TASKS, Analyst
from tests.support.tiny_models import renderer

QUIET = Console(quiet=True)
QUESTIONS = InterCodeSqlToolsConfig(count=TASKS)


@contextmanager
def upstream(fake: FakeUpstream) -> Iterator[dict[str, Any]]:
    """Fields of a job whose policy is the fake."""
    with serving_app(fake.app()) as url:
        hosted = HostedModel.model_validate({"url": f"{url}/v1", "model": MODEL, "patience_s": 20})
        upstreams: Mapping[str, HostedModel] = {"demo": hosted}
        yield {"environment": QUESTIONS, "policy": "upstream:demo", "upstreams": upstreams}


class LikesAnswers(Scorer):
    """A scorer: Q is 1 for a call with a right query, and it reads the call itself."""

    name = "likes-answers"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(float(self._is_right(m)) for m in request.candidates), 1) for request in requests]

    def _is_right(self, message: Message) -> bool:
        return any(gold in call.arguments for gold in GOLD.values() for call in message.tool_calls)


def roles(row: Trajectory) -> list[str]:
    return [message.role for message in row.messages]


def test_collected_episodes_hold_calls_and_their_results(tmp_path: Path) -> None:
    fake = Analyst()
    with upstream(fake) as fields:
        config = CollectConfig(output=tmp_path, player="policy", attempts=4, **fields)
        collected = run_collect(config, console=QUIET)
    assert (collected["kept"], collected["failures"]) == (TASKS, 0)
    assert {str(body["tools"]) for body in fake.asked} == {str([SQL_TOOL])}
    rows = list(read_trajectories(tmp_path / "rows.jsonl"))
    assert {row.environment for row in rows} == {"intercode-sql-tools"}
    assert {row.messages[0].content for row in rows} == {TOOL_SYSTEM}
    for row in rows:
        assert roles(row)[:4] == ["system", "user", "assistant", "tool"]
        assert roles(row)[-2:] == ["assistant", "user"]  # handed in without a call
        call = row.messages[2].tool_calls[0]
        assert row.messages[3].tool_call_id == call.id
        steps = row.steps
        assert [step.reward for step in steps] == [*[0.0] * (len(steps) - 1), 1.0]
        history = INTERCODE_SQL_TOOLS.chat.history(row.messages[1].content, steps)
        assert history == row.messages


def test_every_call_of_a_reply_has_its_result(tmp_path: Path) -> None:
    with upstream(Analyst(calls_at_once=3)) as fields:
        config = CollectConfig(output=tmp_path, player="policy", only_won=False, temperature=0.0, **fields)
        assert run_collect(config, console=QUIET)["failures"] == 0
    looked = [row for row in read_trajectories(tmp_path / "rows.jsonl") if len(row.messages[2].tool_calls) == 3]
    assert looked
    assert all(roles(row)[2:6] == ["assistant", "tool", "tool", "tool"] for row in looked)


def test_groups_hold_calls_that_are_replayed_and_played_on(tmp_path: Path) -> None:
    with upstream(Analyst()) as fields:
        config = GroupsConfig(
            output=tmp_path,
            decisions=Decisions(draws=(Draws(n=3, temperature=0.7),), max_steps=4, horizon=6),
            continuation=Continuation(by="policy"),
            **fields,
        )
        figures = run_groups(config, console=QUIET)
    assert (figures["episodes"], figures["failures"]) == (TASKS, 0)
    rows = list(read_groups(tmp_path / "rows.jsonl"))
    for row in rows:
        decision = decisions_of(row)[0]
        assert [message.role for message in decision.history] == ["system", "user"]
        assert len(decision.candidates) == 2  # three draws, of which two make the same call
        assert all(c.message.tool_calls for c in decision.candidates)
        assert all(c.answer[0].role == "tool" for c in decision.candidates)
        assert {c.reward for c in decision.candidates} == {0.0, 1.0}
        assert all(c.outcome == 1.0 for c in decision.candidates)
    packed = pack_groups(renderer(), rows[0], GroupLabels(), min_label_margin=0.02, max_length=4096, max_tokens=4096)
    assert packed[0].token_ids


def test_shares_of_calls_are_drawn_with_the_tools(tmp_path: Path) -> None:
    fake = Analyst()
    with upstream(fake) as fields:
        played = GroupsConfig(
            output=tmp_path / "groups",
            decisions=Decisions(draws=(Draws(n=3, temperature=0.7),), max_steps=4, horizon=6),
            continuation=Continuation(by="policy"),
            **fields,
        )
        run_groups(played, console=QUIET)
        fake.asked.clear()
        config = ChoiceRegretConfig(
            output=tmp_path / "regret",
            groups=(tmp_path / "groups",),
            policy=fields["policy"],
            upstreams=fields["upstreams"],
            draws=PolicyDraws(n=4),
        )
        run_choice_regret(config)
    assert fake.asked
    assert all(body.get("tools") == [SQL_TOOL] for body in fake.asked)
    for row in read_rows(tmp_path / "regret" / "rows.jsonl", ScoredEpisodeRow):
        assert row.decisions[0].q_values == (0.5, 0.5)


def test_trees_hold_calls_and_are_labelled(tmp_path: Path) -> None:
    with upstream(Analyst()) as fields:
        config = ExploreConfig(
            output=tmp_path / "trees", exploration=Exploration(max_steps=4, max_draws=4, depth=2), **fields
        )
        figures = run_explore(config, console=QUIET)
    assert figures["failures"] == 0
    for row in read_rows(tmp_path / "trees" / "rows.jsonl", TreeRow):
        tree = tree_from_row(row)
        first = [tree.node(node_id).step for node_id in tree.children[0]]
        assert len(first) == 2
        assert all(step.message.tool_calls for step in first)
        assert all(step.observed and step.observed[0].role == "tool" for step in first)
    run_label(LabelConfig(trees=(tmp_path / "trees",), output=tmp_path / "labels"))
    labels = list(read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow))
    assert any(node.reply for row in labels for node in row.nodes)


def test_methods_are_compared_on_calls(tmp_path: Path) -> None:
    with upstream(Analyst()) as fields:
        config = EvaluateConfig(
            output=tmp_path,
            methods=("greedy", "q-guided", "best-of-n"),
            seeds=(0,),
            candidates=3,
            max_steps=3,
            **fields,
        )
        results = run_evaluate(config, scorer=LikesAnswers(), console=QUIET)
    assert results.complete
    episodes = list(read_rows(tmp_path / "episodes.jsonl", EpisodeRow))
    guided = [episode for episode in episodes if episode.method == "q-guided"]
    assert all(episode.success and episode.steps == 2 for episode in guided)
    assert {e.actions[0].partition("(")[0] for e in guided} == {"Action: execute_sql"}
    assert next(row for row in results.rows if row.method == "q-guided").success_rate == 1.0


def test_a_fake_upstream_without_a_script_calls_the_tool(tmp_path: Path) -> None:
    with upstream(FakeUpstream()) as fields:
        config = CollectConfig(output=tmp_path, player="policy", only_won=False, temperature=0.0, **fields)
        collected = run_collect(config, console=QUIET)
    rows = list(read_trajectories(tmp_path / "rows.jsonl"))
    assert collected["episodes"] == len(rows) == TASKS
    assert all(row.terminated and roles(row)[2:4] == ["assistant", "tool"] for row in rows)
    assert all("('book',)" in row.messages[3].content for row in rows)


def test_a_policy_that_writes_text_is_refused(tmp_path: Path) -> None:
    config = CollectConfig(output=tmp_path, environment=QUESTIONS, player="policy", policy="embedded")
    with pytest.raises(ConfigError, match=r"policy is 'embedded', .*intercode-sql-tools .*upstream:NAME"):
        run_collect(config, console=QUIET)
