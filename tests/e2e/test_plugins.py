"""A package that is installed brings things by name: the commands know them, and ours stay ours."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import plugins
from qguide.training.environments.registry import find_environment
from qguide.training.jobs.label import LabelConfig
from qguide.training.recordings.formats.read import recording_of

MODULE = """
from pydantic import BaseModel

from qguide.jobs.table import Job
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreResult
from qguide.training.environments.corridor import CORRIDOR


class Short(CachingScorer):
    name = "short"

    def score(self, requests):
        return [
            ScoreResult(tuple(-float(len(str(c))) for c in each.candidates), 0) for each in requests
        ]


class CountConfig(BaseModel):
    upto: int = 3


def run_count(config):
    return {"counted": config.upto}


def tree_values(tree):
    return {node.id: 0.5 for node in tree.nodes}


def plain(record):
    return [{"messages": record["turns"], "reward": 1.0}]


COUNT = Job("count", f"{__name__}:CountConfig", "Data", "Count, a job of a package.")
"""
ENTRY_POINTS = """
[qguide.environments]
hall = shorts:CORRIDOR
alfworld = shorts:CORRIDOR

[qguide.scorers]
short = shorts:Short

[qguide.labels]
half = shorts:tree_values

[qguide.formats]
turned = shorts:plain

[qguide.jobs]
count = shorts:COUNT
"""


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package as pip leaves it: its module, and the metadata that name its entry points."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "shorts", ENTRY_POINTS)
    (folder / "shorts.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def install(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def qguide(*arguments: str) -> Result:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    return done


def test_an_environment_is_found_by_its_name_and_ours_is_not_hidden() -> None:
    assert find_environment("hall").name == "fake"
    assert find_environment("alfworld").name == "alfworld"
    with pytest.raises(ConfigError, match="hall"):
        find_environment("hell")


def test_a_scorer_is_checked_and_served_by_its_name() -> None:
    assert "6 passed" in qguide("scorer", "check", "short").output.replace("\n", " ")
    served = qguide("doctor", "--policy", "scripted", "--scorer", "short").output
    assert "scores: Q = -" in served


def test_the_doctor_lists_what_packages_bring() -> None:
    said = qguide("doctor", "--policy", "scripted", "--scorer", "scripted").output
    lines = [line.split() for line in said.splitlines()]
    assert ["ok", "plug-ins:", "scorers", "short"] in lines
    assert ["ok", "plug-ins:", "environments", "alfworld,", "hall"] in lines


def test_a_target_of_labels_stands_for_its_import_path(tmp_path: Path) -> None:
    config = LabelConfig(trees=(tmp_path,), output=tmp_path, target="half")
    assert config.target == "shorts:tree_values"
    assert LabelConfig(trees=(tmp_path,), output=tmp_path).target == "q"


def test_a_format_of_recordings_is_read_by_its_name(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"turns": []}\n')
    assert recording_of(source, "turned").layout.translate is not None
    with pytest.raises(ConfigError, match="turned"):
        recording_of(source, "turnd")


def test_a_job_has_a_command_of_its_name() -> None:
    assert "Count, a job of a package." in qguide("--help").output
    assert "5" in qguide("count", "--set", "upto=5").output


def test_a_job_that_cannot_be_imported_leaves_the_help_and_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", "[qguide.jobs]\ncrash = crashing:JOB\n")
    (tmp_path / "crashing.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = qguide("--help").output
    assert "job 'crash' cannot be imported: RuntimeError: no licence" in said
    assert "Run the HTTP server" in said
    failed = CliRunner().invoke(app, ["crash", "--set", "upto=5"])
    assert (failed.exit_code, "no licence" in failed.output) == (2, True)


def test_one_name_for_two_things_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "others",
        textwrap.dedent("""
        [qguide.scorers]
        short = others:Other
    """),
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="others:Other"):
        plugins("scorers")
    install(tmp_path, "more", "[qguide.jobs]\ncount = others:JOB\n")
    done = CliRunner().invoke(app, ["--help"])
    assert (done.exit_code, "others:JOB" in done.output) == (2, True)
