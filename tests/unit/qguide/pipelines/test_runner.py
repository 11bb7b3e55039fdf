"""A pipeline's processes: side by side, in order, resumed, stopped, and blamed when they fail."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psutil
import pytest
from rich.console import Console

from qguide.pipelines.plan import Plan, Read
from qguide.pipelines.stage_process import StageProcess, last_lines
from qguide.pipelines.summary import Summary, SummaryFile, locked_folder
from qguide.pipelines.views import LiveTable, print_times, print_verdicts
from qguide.qnet.errors import ConfigError, StageFailedError
from qguide.qnet.models.manifest import Licence, Manifest
from tests.support.scripted_stages import MOST_S, events, finished, plan_of, run, stage, states, summary
from tests.support.serving import ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_stages_that_do_not_need_each_other_run_side_by_side() -> None:
    both = "write('{0}/here'); wait_for('{1}/here'); note('{0}')"
    run(
        plan_of(
            stage("c", finished("c"), needs=("a", "b")),
            stage("a", both.format("a", "b")),
            stage("b", both.format("b", "a")),
        )
    )
    assert sorted(events()[:2]) == ["a", "b"]
    assert events()[2:] == ["c"]
    assert states() == {"c": "finished", "a": "finished", "b": "finished"}


def test_stages_that_are_not_wanted_are_neither_run_nor_forgotten() -> None:
    a, b = stage("a", finished("a")), stage("b", finished("b"))
    run(plan_of(a, b, wanted={"a"}))
    assert events() == ["a"]
    assert states() == {"a": "finished", "b": "waiting"}
    run(plan_of(a, b, wanted={"b"}))
    assert events() == ["a", "b"]
    assert states() == {"a": "finished", "b": "finished"}
    changed = stage("a", finished("a"), value=1)
    run(plan_of(changed, b, wanted={"b"}))  # what is not wanted may have changed
    with pytest.raises(ConfigError, match=r"\ba .*finished, .*value was 0 .* 1; .*--redo-changed"):
        run(plan_of(changed, b))


def test_a_stage_of_two_slots_runs_alone() -> None:
    script = "note('+{0}'); time.sleep(0.05); note('-{0}'); write('{0}/rows')"
    run(
        plan_of(
            stage("wide", script.format("wide"), slots=2), *(stage(name, script.format(name)) for name in ("a", "b"))
        )
    )
    start = events().index("+wide")
    assert events()[start + 1] == "-wide"


def test_times_are_summed_and_printed() -> None:
    busy = "import subprocess\nwhile time.process_time() < 0.3: pass\nwrite('a/rows')"
    plan = plan_of(stage("a", busy))
    run(plan)
    found = summary()
    assert found.stages["a"].cpu_s >= 0.3
    assert found.stages["a"].starts == 1
    assert found.cpu_s == found.stages["a"].cpu_s
    assert found.wall_s >= found.stages["a"].wall_s > 0
    told = io.StringIO()
    print_times(plan, found, Console(file=told))
    assert "finished" in told.getvalue()


LICENCE = Licence(granted=True, reason="its choice is above the agent's own: +0.200 (+0.100 to +0.300)")


@pytest.mark.parametrize(
    ("licence", "said"),
    [
        (LICENCE, ("+0.200 (+0.100 to +0.300)", "qguide serve --scorer b/checkpoint")),
        (LICENCE.model_copy(update={"granted": False}), ("no licence", "+0.200", "b/checkpoint --unlicensed")),
        (None, ("not judged", "serve --scorer b/checkpoint, with --policy or --upstream")),
    ],
)
def test_the_last_word_is_the_verdict_on_the_q_model_that_no_other_is_made_of(
    licence: Licence | None, said: tuple[str, ...]
) -> None:
    write = "note('{0}'); write('{0}/checkpoint/manifest.json', {1!r})"
    first = Manifest(kind="features", name="first", licence=LICENCE).model_dump_json()
    best = Manifest(kind="qnet", name="best", licence=licence).model_dump_json()
    chosen = replace(stage("b", write.format("b", best), needs=("a",)), reads=(Read("checkpoints", "a/checkpoint"),))
    trunk = stage("c", write.format("c", Manifest(kind="policy", name="trunk").model_dump_json()))
    plan = plan_of(stage("a", write.format("a", first)), chosen, trunk, stage("d", finished("d")))
    run(plan)
    told = io.StringIO()
    print_verdicts(plan, summary(), Console(file=told, width=80))
    *before, line = told.getvalue().splitlines()
    assert line.startswith("b: ")
    refused = licence is not None and not licence.granted
    assert ["serve --scorer a/checkpoint" in one for one in before] == [True] * refused
    assert all(part in line for part in ("best", *said))


def test_a_failure_stops_what_needs_it_and_names_the_end_of_its_log() -> None:
    plan = plan_of(
        stage("a", "print('one'); sys.exit('no such game')"),
        stage("b", finished("b"), needs=("a",)),
        stage("c", finished("c"), needs=("b",)),
        stage("d", finished("d")),
    )
    with pytest.raises(StageFailedError, match=r"(?s)^stage a .* 1; .*a\.log:.*no .*game"):
        run(plan)
    assert states() == {"a": "failed", "b": "blocked", "c": "blocked", "d": "finished"}
    assert events() == ["d"]
    assert "one" in Path("pipeline/logs/a.log").read_text()


def test_a_second_start_runs_only_what_is_left() -> None:
    broken = "wait_for('a/rows'); sys.exit(1)"
    with pytest.raises(StageFailedError):
        run(plan_of(stage("a", finished("a")), stage("b", broken, needs=("a",))))
    repaired = plan_of(stage("a", finished("a")), stage("b", finished("b"), needs=("a",)))
    assert "a finished (not run again)" in run(repaired)
    assert events() == ["a", "b"]
    assert [one.starts for one in summary().stages.values()] == [1, 2]
    run(repaired)
    assert events() == ["a", "b"]


def test_a_finished_stage_with_another_configuration_is_refused_or_moved_aside() -> None:
    run(plan_of(stage("a", finished("a"), value=1)))
    changed = plan_of(stage("a", finished("a"), value=2), stage("b", finished("b")))
    with pytest.raises(ConfigError, match=r"\ba .*finished, .*value was 1 .* 2; .*--redo-changed"):
        run(changed)
    assert events() == ["a"]
    run(changed, redo_changed=True)
    assert sorted(events()) == ["a", "a", "b"]
    assert Path("a.replaced-1/rows").exists()


def test_a_stage_whose_input_is_made_anew_and_differs_is_not_kept_silently() -> None:
    first = plan_of(stage("a", finished("a", "1")), stage("b", finished("b"), needs=("a",)))
    run(first)
    Path("a/rows").unlink()
    Path("a").rmdir()
    run(first)
    assert events() == ["a", "b", "a"], "the same input again"
    Path("a/rows").unlink()
    Path("a").rmdir()
    other = plan_of(stage("a", finished("a", "2")), stage("b", finished("b"), needs=("a",)))
    with pytest.raises(StageFailedError, match=r"\bb .*finished, .*\ba .*; .*--redo-changed"):
        run(other)
    run(other, redo_changed=True)
    assert events() == ["a", "b", "a", "a", "b"]


def test_an_unfinished_stage_whose_input_was_replaced_does_not_mix_the_rows_of_both() -> None:
    copy = "write('b/' + pathlib.Path('a/rows').read_text()); note('b')"
    dies = plan_of(stage("a", finished("a", "old")), stage("b", f"{copy}; sys.exit(1)", needs=("a",)))
    with pytest.raises(StageFailedError, match=r"\bb .*status 1; .*b\.log"):
        run(dies)
    Path("a/rows").write_text("new")
    repaired = plan_of(stage("a", finished("a")), stage("b", copy, needs=("a",)))
    with pytest.raises(ConfigError, match=r"\bb .*unfinished, .*\ba .*; .*--redo-changed"):
        run(repaired)
    assert events() == ["a", "b"]
    run(repaired, redo_changed=True)
    assert [path.name for path in Path("b").iterdir()] == ["new"]
    assert [path.name for path in Path("b.replaced-1").iterdir()] == ["old"]
    kept = summary().stages["b"]
    assert kept.made_of is not None
    assert kept.started_of is None


def test_an_unfinished_stage_whose_input_is_the_same_continues() -> None:
    both = "write('b/1') if not pathlib.Path('b').exists() else write('b/2')"
    first = stage("b", f"{both}; sys.exit(1)", needs=("a",))
    with pytest.raises(StageFailedError):
        run(plan_of(stage("a", finished("a")), first))
    run(plan_of(stage("a", finished("a")), stage("b", both, needs=("a",))))
    assert sorted(path.name for path in Path("b").iterdir()) == ["1", "2"]


PLAY = """
note('a')
with open('a/metrics.jsonl', 'a') as metrics:
    for task in ('x', 'y', 'z'):
        if pathlib.Path('able', task).exists():
            write('a/' + task)
        elif not pathlib.Path('a', task).exists():
            metrics.write('{"task_id": "' + task + '", "error": "too slow"}\\n')
"""


def test_failures_of_a_finished_stage_are_counted_and_tried_again_when_told() -> None:
    plan = plan_of(stage("a", "write('a/run.lock')" + PLAY), stage("b", finished("b"), needs=("a",)))
    Path("able").mkdir()
    Path("able/x").touch()
    assert "CPU" in (told := run(plan))
    assert "2 failures)" in told
    assert summary().stages["a"].failures == 2
    assert "a finished (not run again, 2 failures)" in run(plan)
    shown = io.StringIO()
    print_times(plan, summary(), Console(file=shown, width=200))
    assert "a/metrics.jsonl, the last one z: too slow; --retry-failures tries them again" in shown.getvalue()

    run(plan, retry_failures=True)
    assert summary().stages["a"].failures == 2, "those of the last start only"
    assert events() == ["a", "b", "a"], "b has the same input"
    for task in ("y", "z"):
        Path("able", task).touch()
    with pytest.raises(StageFailedError, match=r"\bb .*finished, .*\ba .*; .*--redo-changed"):
        run(plan, retry_failures=True)
    assert summary().stages["a"].failures == 0
    run(plan, retry_failures=True, redo_changed=True)
    assert events() == ["a", "b", "a", "a", "b"]


def test_a_stage_in_which_only_replays_differ_is_not_tried_again() -> None:
    differing = PLAY.replace('"error": "too slow"', '"error": "differs", "replays_differ": 1, "of_tasks": 3')
    plan = plan_of(stage("a", "write('a/run.lock')" + differing))
    Path("able").mkdir()
    run(plan)
    kept = summary().stages["a"]
    assert (kept.failures, kept.differing) == (3, 3)
    shown = io.StringIO()
    print_times(plan, summary(), Console(file=shown, width=200))
    assert "a has 3 failures, named in" in shown.getvalue()
    assert "--retry-failures" not in shown.getvalue()
    run(plan, retry_failures=True)
    assert events() == ["a"]


def test_a_stage_that_was_blocked_by_a_failure_is_not_blocked_for_good() -> None:
    def plan(first: str) -> Plan:
        return plan_of(
            stage("c", finished("c"), needs=("b",)), stage("b", finished("b"), needs=("a",)), stage("a", first)
        )

    run(plan(finished("a")))
    Path("a/rows").unlink()
    Path("a").rmdir()
    with pytest.raises(StageFailedError):
        run(plan("sys.exit(1)"))
    assert states() == {"c": "blocked", "b": "blocked", "a": "failed"}
    run(plan(finished("a")))
    assert set(states().values()) == {"finished"}
    assert events() == ["a", "b", "c", "a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_stages_and_a_second_start_continues(number: signal.Signals) -> None:
    script = """
if pathlib.Path('go').exists():
    write('{0}/rows')
else:
    try:
        write('{0}.up')
        time.sleep(600)
    except KeyboardInterrupt:
        note('{0} interrupted')
        sys.exit(130)
"""
    plan = plan_of(*(stage(name, script.format(name)) for name in ("a", "b")))

    def send() -> None:
        while not (Path("a.up").exists() and Path("b.up").exists()):
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        run(plan)
    sender.join()
    assert sorted(events()) == ["a interrupted", "b interrupted"]
    assert states() == {"a": "interrupted", "b": "interrupted"}
    Path("go").touch()
    run(plan)
    assert states() == {"a": "finished", "b": "finished"}


def test_a_stage_does_not_outlive_a_pipeline_that_is_killed() -> None:
    script = """
import sys
from pathlib import Path
from qguide.pipelines.stage_process import StageProcess
sleeper = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
StageProcess([sys.executable, "-c", sleeper], shown="sleep", log=Path("log")).wait()
"""
    pipeline = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(ROOT)})
    while not (told := last_lines(Path("log"), 1)) or not told[0].isdigit():
        assert pipeline.poll() is None
        time.sleep(0.02)
    sleeper = psutil.Process(int(told[0]))
    pipeline.kill()
    pipeline.wait()
    assert psutil.wait_procs([sleeper], timeout=MOST_S)[1] == []


def test_the_cpu_time_of_a_killed_stage_is_known() -> None:
    script = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
while time.process_time() < 0.2: pass
print("busy", flush=True)
time.sleep(600)
"""
    process = StageProcess([sys.executable, "-c", script], shown="busy", log=Path("log"))
    while last_lines(Path("log"), 1) != ["busy"]:
        time.sleep(0.02)
    process.interrupt()
    process.kill()
    end = process.wait()
    assert end.exit_status == 128 + signal.SIGKILL
    assert end.cpu_s >= 0.2


def test_only_one_pipeline_runs_in_a_folder() -> None:
    with (
        locked_folder(Path("pipeline")),
        pytest.raises(ConfigError, match=r"pipeline; .*output"),
        locked_folder(Path("pipeline")),
    ):
        pass


def test_a_summary_of_something_else_is_refused() -> None:
    Path("pipeline").mkdir()
    Path("pipeline/summary.json").write_text(json.dumps({"rows": 3}))
    with pytest.raises(ConfigError, match=r"pipeline/summary\.json .*\(Extra "):
        SummaryFile(Path("pipeline"))


def test_the_table_shows_the_last_line_of_a_running_stage() -> None:
    plan = plan_of(stage("a", ""))
    found = Summary()
    found.stage("a").state = "running"
    log = plan.log(plan.stages["a"])
    log.parent.mkdir(parents=True)
    log.write_text("$ qguide collect\n[bold]3/7\n")
    told = io.StringIO()
    Console(file=told, width=120).print(LiveTable(plan, found))
    assert "[bold]3/7" in told.getvalue()
    log.write_text("$ qguide sft\n")
    Path("a").mkdir()
    Path("a/metrics.jsonl").write_text('{"step": 4}\n')
    Console(file=told, width=120).print(LiveTable(plan, found))
    assert '{"step": 4}' in told.getvalue()
