"""The two trainers: they learn, they can be killed, and what they write can be served."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from qnet.errors import ConfigError, RecordError
from qnet.models.checkpoint import load_policy, load_qnet
from qnet.models.manifest import MergedLora
from qnet.models.qnet import QNet
from qnet.scoring.value_head import NaiveScorer
from qnet.types import Message, ScoreRequest, ToolCall
from tests.support.tiny_models import save_policy
from training.data.augmentation import Augmentation, build_augmenter
from training.data.decision_groups import DecisionGroupsRow
from training.data.group_labels import GroupLabels
from training.data.records import LabelRow, TrajectoryRow, rows_of
from training.data.runs import JsonlWriter, RunFolder, open_run, read_rows
from training.jobs.sft import SftConfig, build_model, run_sft
from training.jobs.train_qnet import TrainQNetConfig, run_train_qnet
from training.optimization.options import Lora, Optimization, QNetOptimization
from training.optimization.packed_groups import pack_groups
from training.optimization.packed_trees import Framing, PackedTree, Place, pack_tree
from training.q_training.examples import Examples, read_examples, rename_tree
from training.q_training.losses import output_embeddings
from training.q_training.objective import (
    Objective,
    RankingLoss,
    hl_gauss_error,
    tree_loss,
    world_loss,
)
from training.q_training.validation import hidden_of_tree, sibling_accuracy
from training.small_models.architecture import Architecture

TINY = Architecture(
    vocab_size=320, hidden_size=32, intermediate_size=64, layers=2, heads=2, context=128
)


def test_the_words_of_tool_calls_become_tokens(tmp_path: Path) -> None:
    shape = TINY.model_copy(update={"vocab_size": 400})
    config = SftConfig(trajectories=(), output=tmp_path, architecture=shape)
    call = Message("assistant", "", (ToolCall("open", '{"place": "drawer"}'),))
    _, tokenizer = build_model(config, [[Message("user", "Bring the spoon."), call]] * 3)
    assert {"place", "drawer"} <= set(tokenizer.tokenize(call.text))


def episode(color: str) -> tuple[Message, ...]:
    return (
        Message("user", f"Say {color}."),
        Message("assistant", f"Action: {color}"),
    )


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    with (
        open_run(tmp_path / "trajectories", Architecture()) as run,
        JsonlWriter(run.rows) as rows,
    ):
        for number in range(40):
            rows.write(
                TrajectoryRow(
                    task_id=f"t{number}",
                    kind="say",
                    environment="echo",
                    messages=rows_of(episode(("red", "blue")[number % 2])),
                    outcome_reward=1.0,
                    terminated=True,
                    steps=1,
                    source="expert",
                )
            )
    return run.path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Trees in which echoing the asked color is worth 1 and the other one 0."""
    with open_run(tmp_path / "labels", Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in range(40):
            asked = ("red", "blue")[number % 2]
            for node, said in enumerate(("red", "blue"), start=1):
                rows.write(
                    LabelRow(
                        task_id=f"t{number}",
                        kind="say",
                        environment="echo",
                        target="q",
                        messages=rows_of((episode(asked)[0], episode(said)[1])),
                        q_values=(float(said == asked),),
                        node_ids=(node,),
                        parent_ids=(0,),
                    )
                )
    return run.path


def groups_of(folder: Path, numbers: range) -> Path:
    """Episodes of one decision: echoing the asked color ends it well, the other one badly."""
    with open_run(folder, Architecture()) as run, JsonlWriter(run.rows) as rows:
        for number in numbers:
            asked = ("red", "blue")[number % 2]
            candidates = [
                {
                    "action": f"Action: {said}",
                    "count": 1,
                    "observation": "Right." if said == asked else "Wrong.",
                    "reward": float(said == asked),
                    "terminated": True,
                    "valid": said == asked,
                    "continuations": [
                        {"outcome_reward": said == asked, "steps": 1, "terminated": True}
                    ],
                }
                for said in ("red", "blue")
            ]
            fields = {
                "task_id": f"g{number}",
                "kind": "say",
                "environment": "echo",
                "first_observation": f"Say {asked}.",
                "decisions": [{"candidates": candidates, "chosen": number % 3 % 2}],
                "source": "policy",
                "continuation": "expert",
                "seed": 0,
            }
            rows.write(DecisionGroupsRow.model_validate(fields))
    return run.path


def sft_config(trajectories: Path, output: Path, **changes: object) -> SftConfig:
    fields: dict[str, object] = {
        "trajectories": (trajectories,),
        "output": output,
        "architecture": TINY,
        "optimization": Optimization(
            optimizer="muon",
            lr=5e-3,
            muon_lr=0.02,
            epochs=30,
            batch_tokens=90,
            micro_batch_tokens=100,
        ),
    }
    return SftConfig.model_validate(fields | changes)


def test_sft_learns_to_answer_and_qnet_learns_to_rank(
    tmp_path: Path, trajectories: Path, labels: Path
) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft"))
    policy = load_policy(tmp_path / "sft" / "checkpoint")
    model: Any = policy.model
    for color in ("red", "blue"):
        ids = policy.renderer.encode_history(episode(color)[:1])
        reply = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        assert policy.renderer.decode_reply(reply[0, len(ids) :]) == episode(color)[1]

    config = TrainQNetConfig(
        labels=(labels,),
        trunk=tmp_path / "sft" / "checkpoint",
        output=tmp_path / "qnet",
        head_width=32,
        loss_on="last",
        ranking_weight=0.1,
        validation_fraction=0.2,
        optimization=QNetOptimization(lr=3e-3, epochs=8, batch_tokens=40, micro_batch_tokens=40),
    )
    manifest = run_train_qnet(config)
    assert manifest.metrics["sibling_accuracy"] == 1.0
    assert manifest.label_range == (0.0, 1.0)
    assert load_qnet(tmp_path / "qnet" / "checkpoint").manifest == manifest


def test_sft_teaches_an_answer_by_adapters(
    tmp_path: Path, trajectories: Path, policy: Path
) -> None:
    options = Optimization(
        lora=Lora(rank=16), lr=0.02, epochs=15, batch_tokens=200, micro_batch_tokens=200
    )
    config = sft_config(trajectories, tmp_path / "sft", base=policy, optimization=options)
    manifest = run_sft(config)
    assert manifest.lora == MergedLora(rank=16, alpha=32)
    loaded = load_policy(tmp_path / "sft" / "checkpoint")
    assert loaded.manifest == manifest
    model: Any = loaded.model
    start, end = load_policy(policy).model.state_dict(), model.state_dict()
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {name for name in end if "_proj" in name}
    ids = loaded.renderer.encode_history(episode("red")[:1])
    reply = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert loaded.renderer.decode_reply(reply[0, len(ids) :]).content.startswith("Action: ")


def test_adapters_have_a_base(tmp_path: Path, trajectories: Path) -> None:
    with pytest.raises(ValidationError, match="name a base"):
        sft_config(trajectories, tmp_path, optimization=Optimization(lora=Lora()))


@pytest.mark.parametrize("with_trees", [False, True], ids=["groups", "groups and trees"])
def test_a_head_that_reads_matches_learns_from_decision_groups(
    tmp_path: Path, trajectories: Path, labels: Path, with_trees: bool
) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft", optimization=Optimization(epochs=1)))
    config = TrainQNetConfig(
        labels=(labels,) if with_trees else (),
        groups=(groups_of(tmp_path / "groups", range(40)),),
        held_back_groups=(groups_of(tmp_path / "held_back", range(90, 96)),),
        trunk=tmp_path / "sft" / "checkpoint",
        output=tmp_path / "qnet",
        head_width=32,
        head_features="match-1",
        loss_on="last",
        ranking_weight=1.0,
        validation_fraction=0.0,
        freeze_trunk=True,
        keep="spearman",
        optimization=QNetOptimization(
            lr=3e-3, epochs=12, average_last=0.2, batch_tokens=80, micro_batch_tokens=80
        ),
    )
    manifest = run_train_qnet(config)
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    assert manifest.metrics["valid_above_invalid"] == 1.0
    assert manifest.metrics["regret_steps"] == manifest.metrics["invalid_rate"] == 0.0
    assert manifest.metrics["regret_steps_of_random_distinct"] == 20.0
    assert manifest.target == ("q+groups-linear" if with_trees else "groups-linear")
    assert manifest.label_range == ((0.0 if with_trees else pytest.approx(0.2)), 1.0)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert loaded.model.config.head_features == "match-1"
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    for asked, better in (("red", 0), ("blue", 1)):
        [result] = NaiveScorer(loaded).score([ScoreRequest(episode(asked)[:1], candidates)])
        assert result.q_values[better] > result.q_values[1 - better] + 0.1


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random policy."""
    return save_policy(tmp_path_factory.mktemp("policy"))


def small_config(folder: Path, policy: Path, **changes: object) -> TrainQNetConfig:
    """A short training on decision groups."""
    fields: dict[str, object] = {
        "groups": (groups_of(folder / "groups", range(30)),),
        "held_back_groups": (groups_of(folder / "held_back", range(90, 96)),),
        "trunk": policy,
        "output": folder / "qnet",
        "head_width": 32,
        "loss_on": "last",
        "ranking_weight": 1.0,
        "validation_fraction": 0.0,
        "optimization": {
            "lr": 3e-3,
            "epochs": 6,
            "batch_tokens": 300,
            "micro_batch_tokens": 300,
        },
    }
    return TrainQNetConfig.model_validate(fields | changes)


def test_a_qnet_learns_what_an_observation_says(tmp_path: Path, policy: Path) -> None:
    config = small_config(tmp_path, policy, read_at="observation", head_features="match-1")
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


def test_a_head_on_a_trunk_held_in_bfloat16_is_written_in_float32(
    tmp_path: Path, policy: Path
) -> None:
    optimization = {"epochs": 1, "batch_tokens": 300, "frozen_dtype": "bfloat16"}
    config = small_config(tmp_path, policy, freeze_trunk=True, optimization=optimization)
    assert "spearman" in run_train_qnet(config).metrics
    written = load_file(tmp_path / "qnet" / "checkpoint" / "model.safetensors")
    assert {weight.dtype for weight in written.values()} == {torch.float32}
    trunk = load_file(policy / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(written["trunk.embed_tokens.weight"], trunk.bfloat16().float())


def test_labels_without_a_last_observation_cannot_train_a_reader_of_observations(
    tmp_path: Path, policy: Path, labels: Path
) -> None:
    config = small_config(tmp_path, policy, labels=(labels,), groups=(), read_at="observation")
    with pytest.raises(RecordError, match="run `qguide label` again"):
        run_train_qnet(config)


def test_hl_gauss_learns_a_distribution_and_its_mean_is_q(tmp_path: Path, policy: Path) -> None:
    manifest = run_train_qnet(small_config(tmp_path, policy, head_bins=21, head_features="match-1"))
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert loaded.model.head.bins == 21
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    [result] = NaiveScorer(loaded).score([ScoreRequest(episode("red")[:1], candidates)])
    assert 0.0 < result.q_values[1] < result.q_values[0] < 1.1


def test_a_linear_head_learns_to_rank(tmp_path: Path, policy: Path) -> None:
    manifest = run_train_qnet(small_config(tmp_path, policy, head="linear"))
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    head = load_qnet(tmp_path / "qnet" / "checkpoint").model.head
    assert [name for name, _ in head.named_parameters()] == ["out.weight"]


def test_adapters_learn_to_rank_and_are_merged(tmp_path: Path, policy: Path) -> None:
    options = {"lora": {"rank": 8}, "lr": 1e-2, "epochs": 6, "average_last": 0.2}
    tokens = {"batch_tokens": 300, "micro_batch_tokens": 300}
    config = small_config(tmp_path, policy, keep="spearman", optimization=options | tokens)
    manifest = run_train_qnet(config)
    assert manifest.metrics["spearman"] == pytest.approx(1.0)
    assert manifest.lora == MergedLora(rank=8, alpha=32)
    loaded = load_qnet(tmp_path / "qnet" / "checkpoint")
    assert loaded.manifest == manifest
    candidates = (Message("assistant", "Action: red"), Message("assistant", "Action: blue"))
    [result] = NaiveScorer(loaded).score([ScoreRequest(episode("red")[:1], candidates)])
    assert result.q_values[0] > result.q_values[1]
    assert run_train_qnet(config) == manifest


def test_the_error_of_a_distribution_is_least_at_its_target() -> None:
    edges = torch.linspace(-0.1, 1.1, 25)
    centres = (edges[:-1] + edges[1:]) / 2
    for target in (0.2, 0.75, 1.0):
        logits_TK = torch.zeros(1, 24, requires_grad=True)
        optimizer = torch.optim.Adam([logits_TK], lr=0.1)
        for _ in range(400):
            optimizer.zero_grad()
            hl_gauss_error(logits_TK, torch.tensor([target]), edges).sum().backward()
            optimizer.step()
        mean = float(logits_TK.detach().softmax(-1) @ centres)
        assert mean == pytest.approx(target, abs=0.01)


def test_labels_beyond_the_bins_are_refused(tmp_path: Path, policy: Path) -> None:
    with pytest.raises(ConfigError, match=r"a label is 0\.2, but head_range is 0\.5 to 1\.1"):
        run_train_qnet(small_config(tmp_path, policy, head_bins=5, head_range=(0.5, 1.1)))


def test_a_world_model_learns_what_actions_are_answered(tmp_path: Path, policy: Path) -> None:
    config = small_config(tmp_path, policy, observation_weight=0.5, outcome_weight=1.0)
    run_train_qnet(config)
    renderer = load_policy(policy).renderer
    unseen = RunFolder(groups_of(tmp_path / "unseen", range(97, 98)))
    [row] = read_rows(unseen.rows, DecisionGroupsRow)
    [tree] = pack_groups(
        renderer,
        row,
        GroupLabels(),
        min_label_margin=0.1,
        max_length=200,
        max_tokens=400,
        framing=Framing.of(renderer),
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
        ({"observation_weight": 0.1, "freeze_trunk": True}, "freeze_trunk to false"),
        ({"outcome_weight": 0.1, "read_at": "observation"}, "set outcome_weight to 0"),
        ({"head": "linear", "head_bins": 9}, "or head to 'mlp'"),
        ({"head": "linear", "head_features": "match-1"}, "or head to 'mlp'"),
        ({"optimization": {"lora": {}}, "freeze_trunk": True}, "leave one of them out"),
        ({"head_bins": 1}, "set head_bins to 0, or to 2 or more"),
        ({"head_bins": 9, "head_range": (1.0, 0.0)}, "whose first edge is the lower one"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    fields: dict[str, object] = {"trunk": tmp_path, "output": tmp_path, "loss_on": "last"}
    with pytest.raises(ValidationError, match=reason):
        TrainQNetConfig.model_validate(fields | changes)


def test_groups_that_are_trained_on_are_not_held_back(tmp_path: Path) -> None:
    groups = groups_of(tmp_path / "groups", range(4))
    with pytest.raises(ConfigError, match=r"task g0 of held_back_groups .* is also trained on"):
        read_examples(Examples(groups=(groups,), held_back_groups=(groups,)), seed=0)


def test_features_are_refused_where_the_label_stands_on_all_tokens(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set loss_on to 'last'"):
        TrainQNetConfig(trunk=tmp_path, output=tmp_path, head_features="match-1")


def test_starting_a_finished_run_again_changes_nothing(tmp_path: Path, trajectories: Path) -> None:
    config = sft_config(trajectories, tmp_path / "sft")
    first = run_sft(config)
    metrics = RunFolder(tmp_path / "sft").metrics.read_text()
    assert run_sft(config).files == first.files
    assert RunFolder(tmp_path / "sft").metrics.read_text() == metrics


@pytest.mark.parametrize("job", ["sft", "train-qnet"])
def test_a_second_job_in_the_same_folder_is_refused(
    tmp_path: Path, trajectories: Path, labels: Path, job: str
) -> None:
    sft = sft_config(trajectories, tmp_path / "run")
    train_qnet = TrainQNetConfig(
        labels=(labels,), trunk=tmp_path / "trunk", output=tmp_path / "run"
    )
    config = sft if job == "sft" else train_qnet
    with open_run(tmp_path / "run", config), pytest.raises(ConfigError, match="another job is"):
        run_sft(sft) if job == "sft" else run_train_qnet(train_qnet)


def test_a_run_is_not_resumed_under_another_config(tmp_path: Path, trajectories: Path) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft"))
    with pytest.raises(ConfigError, match="seed"):
        run_sft(sft_config(trajectories, tmp_path / "sft", seed=1))


def test_a_run_is_not_resumed_on_another_trunk(tmp_path: Path, policy: Path) -> None:
    trunk = tmp_path / "trunk"
    shutil.copytree(policy, trunk)
    config = TrainQNetConfig(labels=(), trunk=trunk, output=tmp_path / "qnet")
    with pytest.raises(ConfigError, match="no rows"):  # the run has begun all the same
        run_train_qnet(config)
    weights = load_file(trunk / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, trunk / "model.safetensors")
    with pytest.raises(ConfigError, match="under another configuration: trunk_sha256 was "):
        run_train_qnet(config)


def test_the_loss_of_a_perfect_qnet_is_zero_and_of_a_wrong_order_is_not(
    tmp_path: Path, trajectories: Path
) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft", seed=3))
    renderer = load_policy(tmp_path / "sft" / "checkpoint").renderer
    rows = [
        LabelRow(
            task_id="t",
            kind="say",
            environment="echo",
            target="q",
            messages=rows_of((episode("red")[0], episode(said)[1])),
            q_values=(q,),
            node_ids=(node,),
            parent_ids=(0,),
        )
        for node, said, q in ((1, "red", 1.0), (2, "blue", 0.0))
    ]
    [tree] = pack_tree(
        renderer, rows, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=64
    )
    [(better, worse)] = tree.pairs

    def told(of_better: float, of_worse: float) -> torch.Tensor:
        """Q at the ends of both actions, 0 elsewhere."""
        q_T = torch.zeros(len(tree))
        q_T[[better.position, worse.position]] = torch.tensor([of_better, of_worse])
        return q_T

    assert float(tree_loss(told(1.0, 0.0), tree, Objective()).total) == 0.0
    assert float(tree_loss(told(0.0, 1.0), tree, Objective()).total) == 2.0
    assert sibling_accuracy([told(0.3, 0.2)], [tree]) == (1.0, 1.0)
    assert sibling_accuracy([told(0.2, 0.2)], [tree]) == (0.5, 0.5)


def test_progress_is_the_difference_to_the_action_before(
    tmp_path: Path, trajectories: Path
) -> None:
    run_sft(sft_config(trajectories, tmp_path / "sft", optimization=Optimization(epochs=1)))
    renderer = load_policy(tmp_path / "sft" / "checkpoint").renderer
    ask, red = episode("red")[:2]
    rows = [
        LabelRow(
            task_id="t",
            kind="say",
            environment="echo",
            target="td",
            messages=rows_of((ask, red, ask, episode(said)[1])),
            q_values=q_values,
            node_ids=(1, node),
            parent_ids=(0, 1),
        )
        for said, node, q_values in (("red", 2, (0.5, 1.0)), ("blue", 3, (None, 0.25)))
    ]
    [tree] = pack_tree(
        renderer, rows, loss_on="last", min_label_margin=0.1, max_length=64, max_tokens=64
    )
    # The label of node 1 is in the first path alone, but it comes before both of its children.
    [(win, before), (lose, same)] = tree.successions
    assert before == same
    assert [place.q_value for place in (before, win, lose)] == [0.5, 1.0, 0.25]
    q_T = torch.zeros(len(tree))
    q_T[[before.position, win.position, lose.position]] = torch.tensor([0.4, 0.6, 0.3])
    promise = 0.1**2 + 0.4**2 + 0.05**2
    progress = (0.2 - 0.5) ** 2 + (-0.1 + 0.25) ** 2
    assert float(tree_loss(q_T, tree, Objective()).total) == pytest.approx(promise)
    total = tree_loss(q_T, tree, Objective(progress_weight=2.0)).total
    assert float(total) == pytest.approx(promise + 2 * progress)


def test_trainings_from_before_progress_have_the_same_configuration() -> None:
    assert "progress_weight" not in Objective().model_dump()
    assert Objective(progress_weight=1.0).model_dump()["progress_weight"] == 1.0


def test_a_rare_great_regret_outweighs_a_frequent_small_one() -> None:
    # In two trees of three the first action is better by 0.1, in the third the second one by 0.9.
    trees = []
    for first, second in ((0.1, 0.0), (0.1, 0.0), (0.0, 0.9)):
        tree = PackedTree(token_ids=[1, 2])
        places = (Place(0, first), Place(1, second))
        tree.pairs = [places if first > second else places[::-1]]
        tree.weight, tree.weighted = [0.0, 0.0], [0.0, 0.0]
        tree.depths, tree.before = [0, 0], [-1, -1]
        trees.append(tree)
    margin = torch.zeros((), requires_grad=True)

    def slope(ranking: RankingLoss) -> float:
        objective = Objective(ranking_weight=1.0, ranking=ranking)
        q_T = torch.stack([margin, -margin])
        loss = torch.stack([tree_loss(q_T, tree, objective).total for tree in trees]).sum()
        return float(torch.autograd.grad(loss, margin)[0])

    assert slope("order") < slope("root") < slope("regret")
    assert slope("order") < 0 < slope("regret")
    by_count, by_gap = sibling_accuracy([torch.tensor([1.0, 0.0])] * 3, trees)
    assert by_count == pytest.approx(2 / 3)
    assert by_gap == pytest.approx(0.2 / 1.1)


def test_the_paths_of_a_tree_get_the_same_new_names() -> None:
    augment = build_augmenter(Augmentation(probability=1.0, groups=(("red", "blue", "green"),)))
    rows = [
        LabelRow(
            task_id="t",
            kind="say",
            environment="echo",
            target="q",
            messages=rows_of((episode("red")[0], episode(said)[1])),
            q_values=(0.5,),
            node_ids=(node,),
            parent_ids=(0,),
        )
        for node, said in ((1, "red"), (2, "blue"))
    ]
    for seed in range(6):
        first, second = rename_tree(rows, augment, random.Random(seed))
        asked = first.messages[0].content
        assert asked == second.messages[0].content
        assert asked == f"Say {first.messages[1].content.removeprefix('Action: ')}."
        assert second.messages[1].content != first.messages[1].content
        assert (first.q_values, second.node_ids) == ((0.5,), (2,))
