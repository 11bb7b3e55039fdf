"""Jobs whose rows are spread over tasks of Ray: the files of one process."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.rows.rows import RowsBench, group_lines, messages_lines, tree_lines
from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.algorithms.tree import Tree
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.jobs.label import LabelConfig, run_label
from qguide.training.jobs.pairs import PairsConfig, StoredGroups, run_pairs
from qguide.training.processes.messages import WorkerLostError
from qguide.training.workers.config import Workers
from qguide.training.workers.ray_actors import spread
from tests.support.worker_jobs import count_deaths

ROWS = 300
"""Several batches: they hold 16 KiB here."""
RAY = {"executor": "ray", "count": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Trees, decision groups, and chats."""
    root = tmp_path_factory.mktemp("rows")
    for name, lines in (("trees", tree_lines), ("groups", group_lines), ("messages", messages_lines)):
        (root / name).mkdir()
        with (root / name / "rows.jsonl").open("w") as file:
            file.writelines(lines(RowsBench(output=root / "none.json"), ROWS))
    return {name: [root / name] for name in ("trees", "groups", "messages")}


def label(output: Path, folders: dict[str, list[Path]], **options: Any) -> None:
    run_label(LabelConfig.model_validate({"trees": folders["trees"], "output": output, **options}))


def pairs(output: Path, folders: dict[str, list[Path]], **options: Any) -> None:
    sources = {"trajectories": folders["trees"], **folders}
    sources.pop("messages", None)
    run_pairs(PairsConfig.model_validate({**sources, "output": output, **options}))


def import_(output: Path, folders: dict[str, list[Path]], **options: Any) -> None:
    [source] = folders["messages"]
    run_import(ImportConfig.model_validate({"source": source, "output": output, **options}))


@pytest.mark.parametrize("job", [label, pairs, import_])
def test_files_are_those_of_one_process(
    tmp_path: Path,
    ray_cluster: None,
    folders: dict[str, list[Path]],
    job: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qguide.training.workers.ray_actors._BATCH_BYTES", 2**14)
    job(tmp_path / "here", folders)
    job(tmp_path / "spread", folders, workers=RAY)
    written = [path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("*.jsonl")]
    assert len(written) == (3 if job is import_ else 2)
    for name in written:
        here, spread = ((tmp_path / run / name).read_bytes() for run in ("here", "spread"))
        assert here == spread != b"", name


def test_what_a_task_refuses_is_told_as_in_one_process(tmp_path: Path, ray_cluster: None) -> None:
    [line] = tree_lines(RowsBench(output=tmp_path / "none.json"), 1)
    (tmp_path / "twice").mkdir()
    (tmp_path / "twice/rows.jsonl").write_text(2 * line.replace('"draws": 1', '"draws": 4'))
    for workers in ({}, RAY):
        with pytest.raises(RecordError, match=r"rows\.jsonl, task task/0: .*twice"):
            label(tmp_path / "labels", {"trees": [tmp_path / "twice"]}, workers=workers)
    assert not (tmp_path / "labels/rows.jsonl").exists()


@pytest.mark.parametrize("layout", ["lines", "list"])
def test_records_of_an_import_are_judged_as_in_one_process(
    tmp_path: Path, ray_cluster: None, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qguide.training.workers.ray_actors._BATCH_BYTES", 2**11)
    [chat] = messages_lines(RowsBench(output=tmp_path / "none.json"), 1)
    [tree] = tree_lines(RowsBench(output=tmp_path / "none.json"), 1)
    served = tree.replace('"draws": 1', '"draws": 1, "episode": "e1"')
    for name, format_, rows in (("chats", "messages", [chat, "{}", chat]), ("served", "served", [served] * 40)):
        source = tmp_path / f"{name}.{layout}.json"
        source.write_text("\n".join(rows) if layout == "lines" else f"[{','.join(rows)}]")
        here, spread = (tmp_path / f"{name}-{where}" for where in ("here", "spread"))
        for output, workers in ((here, {}), (spread, RAY)):
            import_(output, {"messages": [source]}, format=format_, skip_bad=True, workers=workers)
        report = json.loads((here / "report.json").read_bytes())
        assert report == json.loads((spread / "report.json").read_bytes())
        assert (report["episodes"], report["skipped"]) == ((2, 1) if name == "chats" else (1, 0))


def hanging(tree: Tree) -> dict[int, float]:
    """A target that does not come back."""
    time.sleep(60)
    return {}


def test_a_target_that_hangs_ends_the_job(tmp_path: Path, ray_cluster: None, folders: dict[str, list[Path]]) -> None:
    target = f"{__name__}:{hanging.__name__}"
    with pytest.raises(ConfigError, match=r"test_spread_rows:hanging' .*task/\d+: .* 0\.5 s.*workers\.timeout_s"):
        label(tmp_path, folders, target=target, workers={**RAY, "timeout_s": 0.5})


def test_a_batch_is_done_again_by_another_worker(tmp_path: Path, ray_cluster: None) -> None:
    rows = [StoredGroups(tmp_path, number, b"{}") for number in range(3)]
    assert list(spread(partial(count_deaths, tmp_path, 1), rows, Workers(executor="ray", count=1))) == [0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_batch_is_given_up_after_four_workers(tmp_path: Path, ray_cluster: None) -> None:
    rows = [StoredGroups(tmp_path, number, b"{}") for number in range(3)]
    with pytest.raises(WorkerLostError, match=r"Ray .*start"):
        list(spread(partial(count_deaths, tmp_path, 9), rows, Workers(executor="ray", count=1)))
    assert len(list(tmp_path.iterdir())) == 4


def test_no_cluster_is_asked_where_there_is_nothing_to_spread() -> None:
    nowhere = Workers(executor="ray", address="127.0.0.1:1")
    assert list(spread(len, list[StoredGroups](), nowhere)) == []


@pytest.mark.parametrize("workers", [{"executor": "processes"}, {"executor": "ray", "q_actors": 1}])
def test_only_ray_spreads_rows_and_no_actors_are_needed(tmp_path: Path, workers: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"executor is '\w+', policy_actors 0 .*q_actors \d, .*'ray' or 'inline'"):
        LabelConfig.model_validate({"trees": [tmp_path], "output": tmp_path / "labels", "workers": workers})
    with pytest.raises(ValidationError, match=r"workers\.executor is 'ray', .*qnet 'embedded'"):
        LabelConfig.model_validate(
            {"trees": [tmp_path], "output": tmp_path, "target": "td", "qnet": "embedded", "workers": RAY}
        )
