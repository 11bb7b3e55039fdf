"""Contracts of label targets, methods, formats and jobs: ours and the documentation's keep them, bad ones fail.

The checks are those of `qguide plugin check`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.jobs.contracts import PluginKind, check_plugin
from qguide.jobs.table import JOBS
from qguide.training.algorithms.backups import Target
from qguide.training.evaluation.methods import AGENTS
from tests.support.documents import blocks_of
from tests.support.echo import groups_in
from tests.support.recordings import SAMPLES
from tests.support.recordings.sample import Sample

RECORDED = ("judge", "mcts")
SOME_METHODS = ("greedy", "random-distinct", "q-guided", "adaptive")
JOB = """
policy = "random"
output = "runs/trees"
{option}

[environment]
name = "fake"
count = 2
"""
BROKEN = """
from itertools import count
from random import random

from pydantic import BaseModel

from qguide.jobs.table import Job
from qguide.qnet.types import SampleRequest, ScoreRequest
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import AgentStep, seeded

turn = count()


def strangers(tree):
    return {10**6: 1.0}


def alike(tree):
    return {node.id: 0.5 for node in tree.nodes}


def chance(tree):
    return {node.id: random() for node in tree.nodes}


def winners(tree):
    return {node.id: 1.0 / [n.step.reward for n in tree.nodes].count(1.0) for node in tree.nodes}


def drawing(play, seed, task_id, *, told=1):
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history, step):
        drawn = yield SampleRequest(history, play.candidates, sampling_at(step))
        return AgentStep(drawn[next(turn) % len(drawn)].message, told * sum(c.completion_tokens for c in drawn))

    return choose


def cheap(play, seed, task_id):
    return drawing(play, 0, task_id, told=0)


def unread(play, seed, task_id):
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history, step):
        [drawn] = yield SampleRequest(history, 1, sampling_at(step))
        yield ScoreRequest(history, (drawn.message,))
        return AgentStep(drawn.message, drawn.completion_tokens)

    return choose


def no_agent(play, seed, task_id):
    return None


def silent(record):
    return []


def anything(record):
    yield {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "reward": random()}


class OpenConfig(BaseModel):
    folder: str = ""


def run_open(config):
    return {}


OPEN = Job("open", "broken_plugins:OpenConfig", "Data", "Takes anything.")
LOST = Job("lost", "broken_plugins:NoConfig", "Data", "Has no configuration.")
EXPLORE = Job("explore", "broken_plugins:OpenConfig", "Data", "Has the name of ours.")


class GrowingConfig(JobOptions):
    output: str


def run_growing(config):
    from pathlib import Path

    Path(config.output).mkdir(exist_ok=True)
    with (Path(config.output) / "rows.jsonl").open("a") as rows:
        rows.write("{}\\n")


GROWING = Job("growing", "broken_plugins:GrowingConfig", "Data", "Writes all rows again.")


class QuietConfig(JobOptions):
    folder: str = ""


def run_quiet(config):
    return {}


QUIET = Job("quiet", "broken_plugins:QuietConfig", "Data", "Breaks no rule, and writes nothing.", stage=False)
"""


def outcomes(kind: PluginKind, name: str, source: Path | None = None) -> set[str]:
    return {finding.outcome for finding in check_plugin(kind, name, source)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with plug-ins that break a rule each, those of the documentation, and what they are tried with."""
    (tmp_path / "broken_plugins.py").write_text(BROKEN)
    for block in blocks_of("docs/methods/index.md"):
        if block.text.startswith("# my_"):
            (tmp_path / block.text.split()[1].rstrip(",")).write_text(block.text)
    (tmp_path / "episode.json").write_text('{"messages": [], "reward": 1}')
    (tmp_path / "growing.toml").write_text('output = "runs/growing"')
    (tmp_path / "quiet.toml").write_text('folder = "runs"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def imported_afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules of the folder."""
    import sys

    yield
    for name in ("broken_plugins", "my_labels", "my_methods", "my_objective"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("target", sorted({*get_args(Target)} - {*RECORDED}))
def test_each_target_keeps_to_the_contract(target: str) -> None:
    assert outcomes("labels", target) == {"passed"}


# The others differ from these in what they do with the same draws and values.
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in SOME_METHODS else [pytest.mark.slow]) for name in AGENTS]
)
def test_each_method_keeps_to_the_contract(method: str) -> None:
    assert outcomes("methods", method) == {"passed"}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_each_format_keeps_to_the_contract(sample: Sample, tmp_path: Path) -> None:
    sample.write(tmp_path)
    assert "failed" not in outcomes("formats", sample.format, tmp_path)


@pytest.mark.parametrize("job", [job.name for job in JOBS.values() if job.stage])
def test_each_job_keeps_to_the_contract(job: str) -> None:
    assert "failed" not in outcomes("jobs", job)


@pytest.mark.parametrize(("job", "option"), [("explore", "exploration.max_draws = 4"), ("evaluate", "max_steps = 2")])
def test_a_job_that_is_run_keeps_what_is_there(job: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.format(option=option))
    assert outcomes("jobs", job, tmp_path / "job.toml") == {"passed"}


def test_learning_without_a_given_salt_keeps_what_is_there(tmp_path: Path) -> None:
    groups = groups_in(tmp_path / "groups", range(20))
    (tmp_path / "job.toml").write_text(f'source = ["{groups}"]\noutput = "unused"\n')
    assert outcomes("jobs", "learn", tmp_path / "job.toml") == {"passed"}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "name"),
    [("labels", "my_labels:spare_steps"), ("methods", "my_methods:shortest"), ("jobs", "my_objective:JOB")],
)
def test_what_the_documentation_writes_keeps_to_the_contract(kind: PluginKind, name: str) -> None:
    assert "failed" not in outcomes(kind, name)


def test_a_job_that_is_no_stage_needs_no_output(folder: Path) -> None:
    found = check_plugin("jobs", "broken_plugins:QUIET", folder / "quiet.toml")
    assert [one.outcome for one in found] == ["passed"] * 4 + ["not checked"]


@pytest.mark.usefixtures("folder")
def test_a_method_that_plays_no_step_has_told_no_tokens() -> None:
    *_, tokens, read = check_plugin("methods", "broken_plugins:no_agent")
    assert (tokens.outcome, tokens.detail) == ("not checked", "no step was played")
    assert (read.outcome, read.detail) == ("not checked", "no step was played")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "name", "source", "said"),
    [
        ("labels", "strangers", "", "labels node 1000000 of task corridor:0 1.0; nodes are 1 to"),
        ("labels", "alike", "", "all actions after one state have one label"),
        ("labels", "chance", "", "the same tree has the labels"),
        ("labels", "winners", "", "ZeroDivisionError"),
        ("methods", "drawing", "", "the same seed plays another episode"),
        ("methods", "cheap", "", "completion tokens and tells 0"),
        ("methods", "unread", "", "tokens and tells 0 as scored_tokens"),
        ("methods", "no_agent", "", "'NoneType' object is not callable"),
        ("formats", "silent", "episode.json", "episode.json holds no record"),
        ("formats", "anything", "episode.json", "a record of unrelated fields is read as an episode"),
        ("formats", "anything", "episode.json", "read twice, the recording has other episodes"),
        ("jobs", "OPEN", "", "has no `output` among ['folder']"),
        ("jobs", "OPEN", "", "a field that it does not know is taken without a word"),
        ("jobs", "LOST", "", "has no attribute 'NoConfig'"),
        ("jobs", "EXPLORE", "", "'explore' is a job of ours"),
        ("jobs", "GROWING", "growing.toml", "a second run changes what the first one wrote"),
    ],
)
def test_what_a_plugin_breaks_is_told_with_its_remedy(kind: str, name: str, source: str, said: str) -> None:
    arguments = ["--source", source] if source else []
    done = CliRunner().invoke(app, ["plugin", "check", kind, f"broken_plugins:{name}", *arguments])
    assert done.exit_code == 1, done.output
    assert said in done.output
    assert "remedy: " in done.output


@pytest.mark.usefixtures("folder")
def test_records_without_a_reward_are_counted_apart_from_those_without_an_episode() -> None:
    rows = [
        {"messages": []},
        {"messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "I go."}]},
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = CliRunner().invoke(app, ["plugin", "check", "formats", "messages", "--source", "rows.jsonl"])
    assert "1 of 2 hold no episode" in done.output
    assert "1 records state none; say it to `import`: rows.jsonl, line 2" in " ".join(done.output.split())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("kind", "name", "source", "said"),
    [
        ("formats", "atif", "nowhere", "nowhere does not exist"),
        ("jobs", "explore", "nowhere", "nowhere is no file"),
        ("jobs", "explore", "quiet.toml", "folder: there is no such field"),
    ],
)
def test_a_source_that_cannot_be_read_is_no_fault_of_the_plugin(kind: str, name: str, source: str, said: str) -> None:
    done = CliRunner().invoke(app, ["plugin", "check", kind, name, "--source", source])
    assert done.exit_code == 2, done.output
    assert said in done.output


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("labels", "spare", "there is no target 'spare'; name one of q, avg"),
        ("labels", "judge", "is read from what a tree recorded"),
        ("methods", "lats", "no function alone is the method 'lats'"),
        ("methods", "nowhere_at_all:x", "ModuleNotFoundError"),
        ("formats", "paper", "'paper' is no format"),
        ("jobs", "explode", "job 'explode' is unknown"),
    ],
)
def test_what_is_no_plugin_is_refused_with_what_there_is(kind: str, name: str, said: str) -> None:
    done = CliRunner().invoke(app, ["plugin", "check", kind, name])
    assert done.exit_code == 2, done.output
    assert said in done.output
