"""Jobs that draw from an upstream: same rows, many requests in flight, counted and resumable."""

import json
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request, Response
from pydantic import ValidationError
from rich.console import Console

from qguide.qnet.errors import ConfigError, UpstreamLostError
from qguide.qnet.records import TreeRow
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.exploration.decision_groups import Decisions, Draws
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.evaluate import EvaluateConfig, run_evaluate
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.groups import Continuation, GroupsConfig, run_groups
from qguide.training.rollouts.hosted import HostedModel
from tests.support.corridor_upstream import MODEL, SameReplies, hosted, serving_corridors
from tests.support.listed_models import ByLength

QUIET = Console(file=StringIO())
UPSTREAM = "upstream:demo"
KEY = "sk-very-secret"
TASKS = 6


def explore_config(output: Path, upstreams: Mapping[str, HostedModel], **changes: object) -> Any:
    values: dict[str, object] = {
        "output": output,
        "environment": CorridorConfig(count=TASKS),
        "exploration": Exploration(max_steps=6, max_draws=4, depth=3),
        "policy": UPSTREAM,
        "upstreams": upstreams,
    }
    return ExploreConfig.model_validate(values | changes)


def trees_in(output: Path) -> list[TreeRow]:
    rows = read_rows(output / "rows.jsonl", TreeRow)
    return sorted(rows, key=lambda row: row.task_id)


def metrics_in(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def usage_in(output: Path) -> dict[str, Any]:
    """The usage of all starts of a run."""
    totals = [row["usage"] for row in metrics_in(output) if "task_id" not in row and "usage" in row]
    usage: dict[str, Any] = totals[-1]
    return usage


@pytest.mark.parametrize("fault", ["", "refuse_n"])
def test_trees_are_those_of_a_policy_in_this_process(tmp_path: Path, fault: Any) -> None:
    with serving_corridors(FakeUpstream(fault=fault)) as url:
        run_explore(explore_config(tmp_path / "hosted", hosted(url)), console=QUIET)
    local = explore_config(tmp_path / "local", {}, policy="embedded")
    run_explore(local, policy=SameReplies(), console=QUIET)
    if not fault:
        assert trees_in(tmp_path / "hosted") == trees_in(tmp_path / "local")
    else:  # tokens of each reply are known where each is drawn alone
        shapes = [
            [[node.action for node in row.nodes] for row in trees_in(tmp_path / name)] for name in ("hosted", "local")
        ]
        assert shapes[0] == shapes[1]


def test_as_many_requests_are_in_flight_as_the_operator_says(tmp_path: Path) -> None:
    fake = FakeUpstream(together=6)
    with serving_corridors(fake) as url:
        run_explore(explore_config(tmp_path, hosted(url, max_in_flight=6)), console=QUIET)
    assert fake.most_in_flight == 6


def test_every_request_names_its_tree_and_candidates_share_a_request(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        run_explore(explore_config(tmp_path, hosted(url)), console=QUIET)
    openings = {row.task_id: row.first_observation for row in trees_in(tmp_path)}
    for body, session in zip(fake.asked, fake.sessions, strict=True):
        assert session is not None
        assert body["messages"][0]["content"] == openings[session]
    assert {body.get("n", 1) for body in fake.asked} == {1, 4}


def test_usage_and_cost_are_those_of_the_upstream(tmp_path: Path) -> None:
    prices = {"prompt": 2.0, "completion": 8.0, "cached_prompt": 0.5}
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        config = explore_config(tmp_path, hosted(url, prices=prices))
        figures = run_explore(config, console=QUIET)
    total = usage_in(tmp_path)
    tasks = [r["usage"] for r in metrics_in(tmp_path) if "usage" in r and "task_id" in r]
    assert len(tasks) == TASKS
    assert total["requests"] == len(fake.asked) == sum(task["requests"] for task in tasks)
    assert total["completion_tokens"] == figures["completion_tokens"]
    fresh = total["prompt_tokens"] - total["cached_prompt_tokens"]
    cost = fresh * 2.0 + total["cached_prompt_tokens"] * 0.5 + total["completion_tokens"] * 8.0
    assert total["cost"] == pytest.approx(cost / 1e6)


@pytest.mark.parametrize("cached_tokens", [10**6, -1])
def test_odd_usage_figures_do_not_end_a_run(tmp_path: Path, cached_tokens: int) -> None:
    class Miscounting(FakeUpstream):
        def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
            completion = super()._completion(body)
            completion["usage"]["prompt_tokens_details"]["cached_tokens"] = cached_tokens
            return completion

    with serving_corridors(Miscounting()) as url:
        upstreams = hosted(url, prices={"prompt": 1.0, "completion": 1.0, "cached_prompt": 0.1})
        run_explore(explore_config(tmp_path, upstreams), console=QUIET)
    total = usage_in(tmp_path)
    assert total["cached_prompt_tokens"] == (total["prompt_tokens"] if cached_tokens > 0 else 0)
    assert total["cost"] > 0


def test_a_rate_limit_is_waited_for(tmp_path: Path) -> None:
    fake = FakeUpstream(fault="429", faults_after=10, faults_left=5)
    with serving_corridors(fake) as url:
        figures = run_explore(explore_config(tmp_path, hosted(url)), console=QUIET)
    assert figures["failures"] == 0
    assert len(trees_in(tmp_path)) == TASKS


def test_a_run_goes_on_after_the_upstream_has_died(tmp_path: Path) -> None:
    fake = FakeUpstream(fault="hang", faults_after=40)
    with ThreadPoolExecutor(1) as thread:
        with serving_corridors(fake) as url:
            config = explore_config(tmp_path / "run", hosted(url, patience_s=0.5), parallel=2)
            run = thread.submit(run_explore, config, console=QUIET)
            while len(fake.asked) <= 40 and not run.done():
                time.sleep(0.01)
        with pytest.raises(UpstreamLostError, match=r"demo .*\(ConnectError\).* kept .*resume$"):
            run.result()
    before = trees_in(tmp_path / "run")
    assert 0 < len(before) < TASKS
    with serving_corridors(FakeUpstream()) as url:
        again = explore_config(tmp_path / "run", hosted(url), parallel=2)
        run_explore(again, console=QUIET)
        run_explore(explore_config(tmp_path / "whole", hosted(url)), console=QUIET)
    assert trees_in(tmp_path / "run") == trees_in(tmp_path / "whole")
    paid, needed = usage_in(tmp_path / "run"), usage_in(tmp_path / "whole")
    assert paid["requests"] > needed["requests"]  # what was lost with the unfinished trees, too


def test_another_model_does_not_resume_the_run(tmp_path: Path) -> None:
    with serving_corridors(FakeUpstream()) as url:
        run_explore(explore_config(tmp_path, hosted(url)), console=QUIET)
        with pytest.raises(ConfigError, match=r"upstreams.demo.model was 'corridor-1'"):
            run_explore(explore_config(tmp_path, hosted(url, model="other")), console=QUIET)


def test_a_wrong_key_ends_the_run_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(UpstreamLostError, match=r"demo .*401\. .*resume$")
    with serving_corridors(FakeUpstream(fault="401")) as url, refused:
        run_explore(explore_config(tmp_path, hosted(url)), console=QUIET)


@dataclass
class Moderated(FakeUpstream):
    """An upstream that answers every request of some tasks with an error.

    Attributes:
        refused: ids of those tasks.
        status: status of the error.
    """

    refused: tuple[str, ...] = ()
    status: int = 403

    async def complete(self, request: Request) -> Response:
        if request.headers.get("x-session-id") in self.refused:
            return Response(status_code=self.status)
        return await super().complete(request)


@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("parallel", [1, 64])
def test_requests_that_always_fail_cost_only_their_own_tasks(tmp_path: Path, parallel: int, status: int) -> None:
    bad = tuple(f"corridor:{k}" for k in (0, 1, 2, 4))
    with serving_corridors(Moderated(refused=bad, status=status)) as url:
        upstreams = hosted(url, patience_s=0.1 if status == 500 else 20.0)
        config = explore_config(tmp_path, upstreams, parallel=parallel)
        first = run_explore(config, console=QUIET)
        again = run_explore(config, console=QUIET)
    assert first["failures"] == again["failures"] == len(bad)
    assert {row.task_id for row in trees_in(tmp_path)} == {"corridor:3", "corridor:5"}


@pytest.mark.parametrize("fault", ["garbage", "429", "500"])
def test_an_upstream_that_answers_nothing_ends_the_run(tmp_path: Path, fault: Any) -> None:
    lost = pytest.raises(UpstreamLostError, match=r"demo .* kept .*resume$")
    with serving_corridors(FakeUpstream(fault=fault, faults_after=10)) as url, lost:
        run_explore(explore_config(tmp_path, hosted(url, patience_s=0.1)), console=QUIET)


def test_the_key_is_sent_and_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("DEMO_KEY", KEY)
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        upstreams = hosted(url, api_key_variable="DEMO_KEY")
        run_explore(explore_config(tmp_path, upstreams), console=QUIET)
    assert set(fake.keys) == {f"Bearer {KEY}"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert not any(KEY in path.read_text() for path in files)
    assert KEY not in caplog.text


def test_a_key_that_is_not_exported_is_named(tmp_path: Path) -> None:
    upstreams = hosted("http://127.0.0.1:1/v1", api_key_variable="NOT_EXPORTED")
    with pytest.raises(ConfigError, match=r"demo: .*NOT_EXPORTED .*api_key_variable"):
        run_explore(explore_config(tmp_path, upstreams), console=QUIET)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("upstream:gpt", r"\[upstreams\.gpt\]; .*upstream:demo"),
        ("http://127.0.0.1:1/v1", "http://HOST:PORT/v1#MODEL"),
        (f"http://me:{KEY}@127.0.0.1:1/v1#m", r"http://…@127\.0\.0\.1/…: .*config\.json .*api_key_variable"),
    ],
)
def test_a_policy_that_cannot_be_found_is_refused_before_the_run(tmp_path: Path, policy: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refused:
        explore_config(tmp_path, hosted("http://127.0.0.1:1/v1"), policy=policy)
    assert KEY not in refused.value.errors()[0]["msg"]


def test_groups_are_drawn_and_continued_by_an_upstream_and_guided_by_a_q_model(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        config = GroupsConfig(
            output=tmp_path,
            environment=CorridorConfig(count=2),
            policy=f"{url}#{MODEL}",
            qnet="embedded",
            decisions=Decisions(draws=(Draws(n=3, temperature=0.7, greedy=True),), go_on="guided", max_steps=5),
            continuation=Continuation(by="policy"),
        )
        figures = run_groups(config, q_model=ByLength(), console=QUIET)
    rows = list(read_groups(tmp_path / "rows.jsonl"))
    assert figures["episodes"] == len(rows) == 2
    assert any(len(decision.candidates) > 1 for row in rows for decision in decisions_of(row))
    greedy = [body for body in fake.asked if body["temperature"] == 0]
    assert {body.get("n", 1) for body in greedy} == {1}
    assert len(greedy) == figures["states"]


def test_an_evaluation_counts_the_usage_of_all_its_starts(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        values: dict[str, Any] = {
            "output": tmp_path,
            "environment": CorridorConfig(count=4),
            "policy": UPSTREAM,
            "upstreams": hosted(url),
            "methods": ("greedy", "sample", "q-guided"),
            "seeds": (0,),
            "max_steps": 6,
        }
        first = run_evaluate(EvaluateConfig(**values), scorer=ByLength(), console=QUIET)
        again = run_evaluate(EvaluateConfig(**values), scorer=ByLength(), console=QUIET)
    assert first.complete
    assert first.usage is not None
    assert first.usage.requests == len(fake.asked)
    assert again.usage == first.usage
    with pytest.raises(ValidationError, match=r"policy is 'upstream:demo', .*likeliest"):
        EvaluateConfig(**values | {"methods": ("likeliest",)})


def test_a_policy_collects_its_own_successes(tmp_path: Path) -> None:
    fake = FakeUpstream()
    with serving_corridors(fake) as url:
        config = CollectConfig(
            output=tmp_path,
            environment=CorridorConfig(count=10),
            player="policy",
            policy=UPSTREAM,
            upstreams=hosted(url),
            attempts=6,
            max_steps=12,
            temperature=1.0,
        )
        collected = run_collect(config, console=QUIET)
        calls = len(fake.asked)
        again = run_collect(config, console=QUIET)
    rows = list(read_trajectories(tmp_path / "rows.jsonl"))
    assert 0 < collected["kept"] == len(rows) < collected["episodes"]
    assert all(row.terminated and row.reward == 1 for row in rows)
    assert {row.source for row in rows} == {MODEL}
    assert not any(row.mistakes for row in rows)
    assert Counter(row.task_id for row in rows).most_common(1)[0][1] == 1
    assert (again["tasks"], len(fake.asked)) == (0, calls)


def test_an_upstream_gets_the_parameters_that_it_takes(tmp_path: Path) -> None:
    fake = FakeUpstream(fault="reasoning")
    with serving_corridors(fake) as url:
        upstreams = hosted(
            url, omit=["temperature"], max_tokens_name="max_completion_tokens", parameters={"reasoning_effort": "low"}
        )
        run_explore(explore_config(tmp_path, upstreams), console=QUIET)
    assert len(trees_in(tmp_path)) == TASKS
    assert {body["reasoning_effort"] for body in fake.asked} == {"low"}
    assert not any("temperature" in body for body in fake.asked)
