"""Rows and recordings in an S3 bucket: s3fs before moto's server. `make test-stores` installs both."""

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.row_files import new_file, open_file, row_files
from qguide.training.data.runs import read_rows
from qguide.training.jobs.label import LabelConfig, run_label
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from tests.support.echo import labels_in
from tests.support.recorded_episodes import DESK, DONE, GIVE_UP, SHELF, episode, write
from tests.support.serving import free_port
from tests.support.tiny_models import save_policy
from tests.unit.training.data.test_row_files import corpus, shards

pytest.importorskip("moto", reason="moto is not installed; run `make test-stores`")
s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed; run `make test-stores`")

pytestmark = pytest.mark.server

BUCKET = Path("s3://bucket")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The address of a server that speaks S3."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                httpx.get(f"{url}/moto-api/")
                break
            except httpx.TransportError:
                assert server.poll() is None
                assert time.monotonic() < until, "moto does not answer"
                time.sleep(0.1)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture(autouse=True)
def bucket(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket, which the variables of any program for S3 name."""
    variables = {"AWS_ENDPOINT_URL": store, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in (variables | {"AWS_DEFAULT_REGION": "us-east-1", "HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("bucket")
    yield
    files.rm("bucket", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def qguide(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("pattern", ["logs", "logs/*.jsonl.gz"])
def test_recordings_are_imported_and_learned_from_as_files_are(tmp_path: Path, pattern: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(3):
        rows = [
            episode(*turns, reward=reward, task=f"mug {number} {at}")
            for at in range(8)
            for turns, reward in (((*DESK, DONE), 1.0), ((*SHELF, GIVE_UP), 0.0))
        ]
        (logs / f"{number}.jsonl.gz").write_bytes(gzip.compress(write(tmp_path, rows).read_bytes()))
    s3fs.S3FileSystem().put(str(logs), "bucket/logs", recursive=True)
    for source, name in ((str(tmp_path / pattern), "here"), (f"s3://bucket/{pattern}", "there")):
        done = qguide("import", source, "--output", str(tmp_path / name), "--reward-key", "reward")
        assert done.exit_code == 0, done.output
        learned = tmp_path / f"learned-{name}"
        sets = (f"source=['{source}']", f"output={learned}", "salt=aabb", "reward_key=reward")
        done = qguide("learn", *(word for one in sets for word in ("--set", one)))
        assert done.exit_code == 0, done.output
    for name in ("trajectories", "trees"):
        here, there = ((tmp_path / place / name / "rows.jsonl").read_bytes() for place in ("here", "there"))
        assert here == there
        assert len(here.splitlines()) in (24, 48)
    found, expected = (
        load_file(tmp_path / f"learned-{place}" / "checkpoint" / "model.safetensors") for place in ("there", "here")
    )
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in expected)


def test_labels_and_pairs_of_shards_are_those_of_a_folder(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 40)
    there = shards(BUCKET / "trees", list(read_rows(trees, TreeRow)))
    for source, name in ((trees, "here"), (there, "there")):
        run_label(LabelConfig(trees=(source,), output=tmp_path / f"labels-{name}"))
        run_pairs(PairsConfig(trees=(source,), output=tmp_path / f"pairs-{name}", trajectory_pairs=True))
    for job in ("labels", "pairs"):
        here, read = ((tmp_path / f"{job}-{name}" / "rows.jsonl").read_bytes() for name in ("here", "there"))
        assert here == read


def test_rows_are_exported_to_a_bucket_and_read_back(tmp_path: Path) -> None:
    trees = corpus(tmp_path / "trees", 20)
    output = "s3://bucket/out/trees.parquet"
    command = ("export-data", "--set", f"source={trees}", "--set", f"output={output}", "--set", "format=parquet")
    done = qguide(*command)
    assert done.exit_code == 0, done.output
    assert list(read_rows(Path(output), TreeRow)) == list(read_rows(trees, TreeRow))
    assert row_files(BUCKET / "out") == [BUCKET / "out" / "trees.parquet"]
    again = qguide(*command)
    assert again.exit_code != 0
    assert output in again.output.replace("\n", "")


# Above 50 MiB s3fs sends parts, which a failure has to take back.
SIZES = 10, 2**26


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_as_it_was_written(size: int) -> None:
    written = bytes(range(251)) * (size // 251 + 1)
    with new_file(BUCKET / "rows.jsonl") as file:
        file.write(written)
    with open_file(BUCKET / "rows.jsonl") as file:
        assert file.read() == written


@pytest.mark.parametrize("size", SIZES)
def test_what_fails_half_way_leaves_nothing(size: int) -> None:
    def fail() -> None:
        with new_file(BUCKET / "half.jsonl") as file:
            file.write(b"x" * size)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(RecordError, match=r"half\.jsonl .*exist"):
        list(read_rows(BUCKET / "half.jsonl", TreeRow))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_that_was_killed_goes_on_from_the_bucket(tmp_path: Path, processes: int) -> None:
    labels_in(tmp_path / "labels")
    s3fs.S3FileSystem().put(str(tmp_path / "labels" / "rows.jsonl"), "bucket/labels/rows.jsonl")
    policy = save_policy(tmp_path / "policy")

    def command(labels: str, output: Path) -> list[str]:
        sets = {
            "labels": f"['{labels}']",
            "trunk": policy,
            "output": output,
            "head_width": 16,
            "optimization.epochs": 3,
            "optimization.batch_tokens": 200,
            "optimization.micro_batch_tokens": 100,
            "optimization.save_every_s": 1e-9,
            "optimization.device": "cpu",
            "optimization.threads": 1,
            "optimization.processes": processes,
        }
        return ["train-qnet", *(word for name, value in sets.items() for word in ("--set", f"{name}={value}"))]

    broken, whole = tmp_path / "broken", tmp_path / "whole"
    run = [sys.executable, "-m", "qguide"]
    started = subprocess.Popen([*run, *command("s3://bucket/labels", broken)], start_new_session=True)
    while not list(broken.glob("state-*[1-9]")):
        assert started.poll() is None
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (broken / "checkpoint").exists()
    for labels, output in (("s3://bucket/labels", broken), (str(tmp_path / "labels"), whole)):
        subprocess.run([*run, *command(labels, output)], check=True)
    ended, expected = (load_file(at / "checkpoint" / "model.safetensors") for at in (broken, whole))
    assert ended.keys() == expected.keys()
    assert all((ended[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize(
    ("variables", "source", "error"),
    [
        ({}, "s3://nowhere/trees", (ConfigError, RecordError)),
        ({}, "s3://bucket/nothing", RecordError),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "s3://bucket/trees", ConfigError),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "s3://bucket/trees", ConfigError),
    ],
    ids=["bucket", "key", "server", "credentials"],
)
def test_what_cannot_be_read_is_named(
    variables: dict[str, str],
    source: str,
    error: type[Exception] | tuple[type[Exception], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(error, match=re.escape(source)):
        list(read_rows(Path(source), TreeRow))
