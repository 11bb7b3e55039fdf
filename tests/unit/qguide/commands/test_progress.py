"""`qguide progress`: a policy and what it was before training, as one implicit Q."""

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.models.checkpoint import load_policy, load_q_model
from qguide.qnet.models.manifest import read_manifest
from qguide.qnet.scoring.build import build_naive_scorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret
from qguide.training.jobs.sft import run_sft
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.optimization.options import Optimization
from tests.support.echo import groups_in, qnet_config, sft_config, trajectories_in
from tests.support.tiny_models import save_policy

HISTORY = (Message("user", "you see a desk. take the mug."),)
REPLIES = tuple(Message("assistant", text) for text in ("Action: look", "Action: take mug", "go"))


def trained(parent: Path, child: Path, wanted: Message) -> None:
    """A child that some steps of gradient descent made say one reply more often."""
    loaded = load_policy(parent)
    renderer = loaded.renderer
    ids = torch.tensor([renderer.encode_history(HISTORY) + renderer.encode_candidate(wanted)])
    optimizer = torch.optim.SGD(loaded.model.parameters(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        loaded.model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    shutil.copytree(parent, child)
    loaded.model.save_pretrained(child)


def run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["progress", *map(str, arguments)])
    return found.exit_code, found.output


def test_what_a_child_was_trained_to_say_has_the_highest_q(tmp_path: Path) -> None:
    parent = save_policy(tmp_path / "parent")
    for number, wanted in enumerate(REPLIES):
        child, output = tmp_path / f"child-{number}", tmp_path / f"q-{number}"
        trained(parent, child, wanted)
        assert run(child, parent, "--output", output)[0] == 0
        scorer = build_naive_scorer(load_q_model(output))
        [result] = scorer.score([ScoreRequest(HISTORY, REPLIES)])
        assert result.q_values.index(max(result.q_values)) == number
        manifest = read_manifest(output)
        assert manifest is not None
        assert (manifest.kind, manifest.target, manifest.licence) == ("implicit-q", "progress", None)


def test_a_policy_has_made_no_progress_over_itself(tmp_path: Path) -> None:
    parent = save_policy(tmp_path / "parent")
    assert run(parent, parent, "--output", tmp_path / "q", "--name", "none")[0] == 0
    [result] = build_naive_scorer(load_q_model(tmp_path / "q")).score([ScoreRequest(HISTORY, REPLIES)])
    assert result.q_values == pytest.approx((0.0, 0.0, 0.0), abs=1e-6)
    code, said = run(parent, parent, "--output", tmp_path / "q")
    assert code == 1
    assert "exists; name a folder that does not" in said.replace("\n", " ")


def test_a_child_of_successes_chooses_on_held_back_decisions_as_a_trained_q_model_does(tmp_path: Path) -> None:
    successes = trajectories_in(tmp_path / "successes")
    run_sft(sft_config(successes, tmp_path / "parent", optimization=Optimization(epochs=1)))
    parent = tmp_path / "parent" / "checkpoint"
    run_sft(sft_config(successes, tmp_path / "child", base=parent))
    assert run(tmp_path / "child" / "checkpoint", parent, "--output", tmp_path / "progress")[0] == 0
    run_train_qnet(qnet_config(tmp_path, parent, head_features="match-1"))
    groups = (groups_in(tmp_path / "judged", range(40, 60)),)
    regret = {
        qnet.name: run_choice_regret(
            ChoiceRegretConfig(output=tmp_path / "by" / qnet.name, groups=groups, qnet=str(qnet))
        )
        for qnet in (tmp_path / "progress", tmp_path / "qnet" / "checkpoint")
    }
    for figures in regret.values():
        assert figures["regret_steps"] == 0 < figures["regret_steps_of_random_distinct"]

    before = read_manifest(tmp_path / "progress")
    judged = CliRunner().invoke(app, ["licence", str(tmp_path / "progress"), str(groups[0])])
    assert "licence: granted" in judged.output
    after = read_manifest(tmp_path / "progress")
    assert before is not None
    assert after is not None
    assert before.unjudged
    assert (after.unjudged, after.files) == ("", before.files)
    assert after.licence is not None
    assert after.licence.tasks == 20
    assert [(one.name, one.tasks) for one in after.licence.judged_by] == [("judged", 20)]
