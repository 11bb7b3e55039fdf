"""A QNet's trainer: heads, adapters, labels and groups, and options that contradict each other."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from qguide.jobs.table import find_job
from qguide.qnet.errors import ConfigError
from qguide.qnet.features.domain import Domain
from qguide.qnet.models.checkpoint import load_policy, load_qnet
from qguide.qnet.models.manifest import Manifest, MergedLora
from qguide.qnet.models.qnet import QNet
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.data.decision_groups import GroupLabels, read_groups
from qguide.training.data.runs import RunFolder
from qguide.training.jobs.sft import run_sft
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.optimization.options import Optimization, QNetOptimization
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.optimization.packed_trees import Framing
from qguide.training.q_training.loss_terms import world_loss
from qguide.training.q_training.options import TrainQNetConfig
from qguide.training.q_training.qnet_loss import output_embeddings
from qguide.training.q_training.validation import hidden_of_tree
from qguide.training.rollouts.models import fitted_prior_of
from tests.support.documents import blocks_of
from tests.support.echo import episode, groups_in, labels_in, qnet_config, sft_config, trajectories_in
from tests.support.tiny_models import save_policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random policy."""
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def trained_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy that was trained on the expert's episodes."""
    folder = tmp_path_factory.mktemp("sft")
    run_sft(sft_config(trajectories_in(folder / "trajectories"), folder, optimization=Optimization(epochs=1)))
    return folder / "checkpoint"


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """A run folder with labelled trees."""
    return labels_in(tmp_path / "labels")


@pytest.mark.parametrize(
    "with_trees", [pytest.param(False, id="groups", marks=pytest.mark.slow), pytest.param(True, id="groups and trees")]
)
def test_a_head_that_reads_matches_learns_from_decision_groups(
    tmp_path: Path, trained_policy: Path, labels: Path, with_trees: bool
) -> None:
    config = TrainQNetConfig(
        labels=(labels,) if with_trees else (),
        groups=(groups_in(tmp_path / "groups", range(40)),),
        held_back_groups=(groups_in(tmp_path / "held_back", range(90, 102)),),
        trunk=trained_policy,
        output=tmp_path / "qnet",
        head_width=32,
        head_features="match-1",
        loss_on="last",
        ranking_weight=1.0,
        validation_fraction=0.0,
        freeze_trunk=True,
        keep="spearman",
        optimization=QNetOptimization(lr=3e-3, epochs=8, average_last=0.2, batch_tokens=80, micro_batch_tokens=80),
    )
    manifest = run_train_qnet(config)
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    assert manifest.metrics["valid_above_invalid"] == 1.0
    assert manifest.metrics["regret_steps"] == manifest.metrics["invalid_rate"] == 0.0
    assert manifest.metrics["regret_steps_of_random_distinct"] == 20.0
    assert manifest.target == ("q+groups-linear" if with_trees else "groups-linear")
    assert manifest.label_range == ((0.0 if with_trees else pytest.approx(0.2)), 1.0)
    assert manifest.prior is not None
    assert manifest.prior.tasks >= 10
    assert manifest.licence is not None
    assert manifest.licence.granted
    assert manifest.licence.tasks == manifest.prior.tasks
    domain = Domain.load(tmp_path / "qnet" / "checkpoint")
    assert domain is not None
    assert not domain.distance(episode("blue")[:1]).outside
    assert domain.distance((Message("user", "Plan a weekend in Lisbon."),)).outside
    by_q, *_, by_prior = manifest.prior.curve
    assert by_q.outcome == pytest.approx(1.0)
    assert by_prior.outcome <= by_q.outcome
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert fitted_prior_of(str(tmp_path / "qnet" / "checkpoint")) == manifest.prior
    assert loaded.model.config.head_features == "match-1"
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    for asked, better in (("red", 0), ("blue", 1)):
        [result] = NaiveScorer(loaded).score([ScoreRequest(episode(asked)[:1], candidates)])
        assert result.q_values[better] > result.q_values[1 - better] + 0.1


def test_siblings_in_held_back_trees_judge_where_there_are_no_groups(
    tmp_path: Path, trained_policy: Path, labels: Path
) -> None:
    fields: dict[str, object] = {"labels": (labels,), "groups": (), "held_back_groups": ()}

    def trained(name: str, *, epochs: int, **held_back: object) -> Manifest:
        optimization = {"lr": 3e-3, "epochs": epochs, "batch_tokens": 80, "micro_batch_tokens": 80}
        changes = fields | held_back | {"optimization": optimization, "head_features": "match-1"}
        return run_train_qnet(qnet_config(tmp_path / name, trained_policy, **changes))

    (labels / "metrics.jsonl").write_text('{"replays_differ": 19, "of_tasks": 59}\n')
    judged = trained("fraction", epochs=8, validation_fraction=0.5)
    # These are not judged by what they have learned.
    other = labels_in(tmp_path / "other", range(50, 56))
    (other / "metrics.jsonl").write_text('{"replays_differ": 3, "of_tasks": 9}\n')
    others = trained("others", epochs=1, held_back_labels=(other,))
    unjudged = trained("none", epochs=1)
    assert judged.prior is None
    assert judged.licence is not None
    assert judged.licence.granted
    assert (judged.licence.decisions, judged.licence.tasks, judged.licence.pairs) == (20, 20, 20)
    assert judged.licence.choosers["draw"].outcome == 0.5
    assert others.licence is not None
    assert (others.licence.granted, others.licence.missing_decisions) == (False, 4)
    assert "3 of 9 tasks failed because replays differ" in others.licence.reason
    assert judged.licence.gain_interval[0] == pytest.approx(0.5)
    assert "19 of 59 tasks failed because replays differ" in judged.licence.reason
    assert "at worst its gains add up to +0.50" in judged.licence.reason, "half of them would have been trained on"
    assert (unjudged.licence, unjudged.prior) == (None, None)
    assert unjudged.unjudged.startswith("no task was held back; hold back some with validation_fraction (0)")
    with pytest.raises(ConfigError, match="task t0 of held_back_labels"):
        run_train_qnet(qnet_config(tmp_path / "both", trained_policy, **fields, held_back_labels=(labels,)))


def test_the_objective_of_the_documentation_trains_and_its_width_tells(
    tmp_path: Path, policy: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [written] = [b.text for b in blocks_of("docs/methods/index.md") if "class HuberObjective" in b.text]
    (tmp_path / "my_objective.py").write_text(written)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = find_job("my_objective:JOB")
    fields = {"labels": (labels,), "trunk": policy, "validation_fraction": 0.0, "optimization": {"epochs": 1}}
    heads = []
    for width in (0.01, 10.0):
        output = tmp_path / str(width)
        job.function()(job.config_type().model_validate(fields | {"output": output, "width": width}))
        heads.append(load_qnet(output / "checkpoint").model.head.state_dict())
    assert any(not torch.equal(one, heads[1][name]) for name, one in heads[0].items())
    monkeypatch.delitem(sys.modules, "my_objective")


def test_a_qnet_learns_what_an_observation_says(tmp_path: Path, policy: Path) -> None:
    config = qnet_config(tmp_path, policy, read_at="observation", head_features="match-1")
    manifest = run_train_qnet(config)
    assert manifest.read_at == "observation"
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    tried = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    right, wrong = (Message("user", "Right."),), (Message("user", "Wrong."),)
    asked = episode("red")[:1]
    [true, false] = NaiveScorer(loaded).score(
        [ScoreRequest(asked, tried, observations=o) for o in ((right, wrong), (wrong, right))]
    )
    assert true.q_values[0] > false.q_values[0]
    assert false.q_values[1] > true.q_values[1]


def test_a_head_on_a_trunk_held_in_bfloat16_is_written_in_float32(tmp_path: Path, policy: Path) -> None:
    optimization = {"epochs": 1, "batch_tokens": 300, "frozen_dtype": "bfloat16"}
    config = qnet_config(tmp_path, policy, freeze_trunk=True, optimization=optimization)
    assert "spearman" in run_train_qnet(config).metrics
    written = load_file(tmp_path / "qnet" / "checkpoint" / "model.safetensors")
    assert {weight.dtype for weight in written.values()} == {torch.float32}
    trunk = load_file(policy / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(written["trunk.embed_tokens.weight"], trunk.bfloat16().float())


def test_hl_gauss_learns_a_distribution_and_its_mean_is_q(tmp_path: Path, policy: Path) -> None:
    manifest = run_train_qnet(qnet_config(tmp_path, policy, head_bins=21, head_features="match-1"))
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert loaded.model.head.bins == 21
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    [result] = NaiveScorer(loaded).score([ScoreRequest(episode("red")[:1], candidates)])
    assert 0.0 < result.q_values[1] < result.q_values[0] < 1.1


def test_a_linear_head_learns_to_rank(tmp_path: Path, policy: Path) -> None:
    manifest = run_train_qnet(qnet_config(tmp_path, policy, head="linear"))
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    head = load_qnet(tmp_path / "qnet" / "checkpoint").model.head
    assert [name for name, _ in head.named_parameters()] == ["out.weight"]


@pytest.mark.parametrize("architecture", ["llama", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_adapters_learn_to_rank_and_are_merged(tmp_path: Path, architecture: str) -> None:
    policy = save_policy(tmp_path / "policy", architecture)
    options = {"lora": {"rank": 8}, "lr": 1e-2, "epochs": 6, "average_last": 0.2}
    tokens = {"batch_tokens": 300, "micro_batch_tokens": 300}
    config = qnet_config(tmp_path, policy, keep="spearman", optimization=options | tokens)
    manifest = run_train_qnet(config)
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    assert manifest.lora == MergedLora(rank=8, alpha=32)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert loaded.manifest == manifest
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    [result] = NaiveScorer(loaded).score([ScoreRequest(episode("red")[:1], candidates)])
    assert result.q_values[0] > result.q_values[1]
    assert run_train_qnet(config) == manifest


def test_labels_beyond_the_bins_are_refused(tmp_path: Path, policy: Path) -> None:
    with pytest.raises(ConfigError, match=r"label is 0\.2, .*head_range is 0\.5 to 1\.1;"):
        run_train_qnet(qnet_config(tmp_path, policy, head_bins=5, head_range=(0.5, 1.1)))


def test_a_world_model_learns_what_actions_are_answered(tmp_path: Path, policy: Path) -> None:
    config = qnet_config(tmp_path, policy, observation_weight=0.5, outcome_weight=1.0)
    run_train_qnet(config)
    renderer = load_policy(policy).renderer
    unseen = RunFolder(groups_in(tmp_path / "unseen", range(97, 98)))
    [row] = read_groups(unseen.path)
    [tree] = pack_groups(
        renderer, row, GroupLabels(), min_label_margin=0.1, max_length=200, max_tokens=400, framing=Framing.of(renderer)
    )

    def surprise(qnet: QNet) -> float:
        with torch.no_grad():
            hidden_TD = hidden_of_tree(qnet, tree)
            logits = output_embeddings(policy, qnet, qnet.device)
            return float(world_loss(hidden_TD, tree, config, logits))

    before = QNet.from_trunk(policy, head_width=32).eval()
    after = load_qnet(tmp_path / "qnet" / "checkpoint").model
    assert surprise(after) < 0.5 * surprise(before)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"read_at": "observation", "loss_on": "all"}, "set loss_on to 'last'"),
        ({"observation_weight": 0.1, "freeze_trunk": True}, r"observation_weight is 0\.1 .*freeze_trunk to false"),
        ({"outcome_weight": 0.1, "read_at": "observation"}, "set outcome_weight to 0"),
        ({"head": "linear", "head_bins": 9}, "head is 'linear', .*head_bins 9; .*'mlp'"),
        ({"head": "linear", "head_features": "match-1"}, "head is 'linear', .*'match-1' .*'mlp'"),
        ({"optimization": {"lora": {}}, "freeze_trunk": True}, r"optimization\.lora .* 16, .*freeze_trunk"),
        ({"head_bins": 1}, "head_bins is 1 .*head_bins to 0, .* 2 "),
        ({"head_bins": 9, "head_range": (1.0, 0.0)}, "head_range 1 to 0; .*lower"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    fields: dict[str, object] = {"trunk": tmp_path, "output": tmp_path, "loss_on": "last"}
    with pytest.raises(ValidationError, match=reason):
        TrainQNetConfig.model_validate(fields | changes)


def test_features_are_refused_where_the_label_stands_on_all_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set loss_on to 'last'"):
        TrainQNetConfig(trunk=tmp_path, output=tmp_path, head_features="match-1")


def test_a_run_is_not_resumed_on_another_trunk(tmp_path: Path, policy: Path) -> None:
    trunk = tmp_path / "trunk"
    shutil.copytree(policy, trunk)
    config = TrainQNetConfig(labels=(), trunk=trunk, output=tmp_path / "qnet")
    with pytest.raises(ConfigError, match=r"labels = \(\) .*groups = \(\); .*`qguide label`"):
        run_train_qnet(config)
    (config.output / "state-000001").mkdir()  # as if the training had begun
    weights = load_file(trunk / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, trunk / "model.safetensors")
    with pytest.raises(ConfigError, match=r": trunk_sha256 was '.+' .*'.+';"):
        run_train_qnet(config)
