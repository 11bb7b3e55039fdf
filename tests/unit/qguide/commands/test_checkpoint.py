"""Commands for checkpoints, on decision groups in which echoing the asked color ends well."""

from pathlib import Path
from statistics import pstdev

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.models.manifest import read_manifest
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.jobs.learn import LearnConfig, run_learn
from qguide.training.rollouts.models import Inference, build_scorer
from tests.support.echo import groups_in
from tests.support.tiny_models import save_policy, save_qnet


def run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(map(str, arguments)))
    return found.exit_code, " ".join(found.output.split())


@pytest.fixture
def kinds(tmp_path: Path) -> list[Path]:
    """A Q model that was learned without a network, and a QNet that was not trained."""
    source = groups_in(tmp_path / "groups", range(40))
    run_learn(LearnConfig(source=(source,), output=tmp_path / "learned", salt="00ff"))
    return [tmp_path / "learned" / "checkpoint", save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))]


def test_a_sum_of_kinds_is_scaled_by_decision_groups_and_judged_by_others(kinds: list[Path], tmp_path: Path) -> None:
    held_back = groups_in(tmp_path / "held_back", range(90, 110))
    output = tmp_path / "sum"
    code, said = run("ensemble", *kinds, "--output", output)
    assert (code, "name decision groups" in said) == (1, True)

    assert run("ensemble", *kinds, "--output", output, "--name", "sum", "--groups", held_back)[0] == 0

    states = [(Message("user", f"Say {color}."),) for color in ("red", "blue")]
    said_both = tuple(Message("assistant", f"Action: {color}") for color in ("red", "blue"))
    spreads = []
    for folder in kinds:
        results = build_scorer(str(folder), Inference()).score([ScoreRequest(state, said_both) for state in states])
        spreads.append(sum(pstdev(one.q_values) ** 2 / 2 for one in results) ** 0.5)
    manifest = read_manifest(output)
    assert manifest is not None
    assert manifest.metrics["scale_of_1"] == pytest.approx(spreads[0] / spreads[1], rel=1e-4)
    assert manifest.licence is None
    assert "licence: granted" in run("licence", output, groups_in(tmp_path / "other", range(200, 220)))[1]
