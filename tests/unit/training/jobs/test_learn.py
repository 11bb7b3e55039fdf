import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rich.console import Console

from qguide.qnet.errors import CheckpointError, ConfigError, RecordError
from qguide.qnet.features.domain import Domain
from qguide.qnet.features.hashing import TASK, Hasher, Sizes, entry
from qguide.qnet.models.feature_q import WEIGHTS, feature_q_of, load_feature_q, save_feature_q
from qguide.qnet.models.manifest import MANIFEST, Manifest, is_feature_q, read_manifest, sha256_of
from qguide.qnet.records import NodeRow, RolloutRow, TreeRow
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.jobs.learn import LearnConfig, run_learn
from qguide.training.licence.verdict import show_manifest
from qguide.training.rollouts.models import Inference, build_scorer

RIGHT = {"ring": "red", "coin": "blue"}


def recording(path: Path, *, count: int = 120, luck: bool = False) -> Path:
    """Chats of an agent that opens one of three drawers; the right one is the thing's."""
    chance = Random(0)
    with path.open("w") as file:
        for number in range(count):
            thing, drawer = chance.choice(list(RIGHT)), chance.choice(["red", "blue", "green"])
            reward = float(chance.random() < 0.3) if luck else float(RIGHT[thing] == drawer)
            messages = [
                {"role": "user", "content": f"Find the {thing} of guest {number}."},
                {"role": "assistant", "content": f"Action: open the {drawer} drawer"},
                {"role": "user", "content": "It is open."},
            ]
            file.write(json.dumps({"messages": messages, "reward": reward}) + "\n")
    return path


def learned(tmp_path: Path, **options: object) -> Manifest:
    source = recording(tmp_path / "chats.jsonl", luck=bool(options.pop("luck", False)))
    fields = {"source": (source,), "output": tmp_path / "run", "salt": "00ff", **options}
    return run_learn(LearnConfig.model_validate(fields))


def test_a_recording_becomes_a_licensed_checkpoint_that_jobs_load(tmp_path: Path) -> None:
    manifest = learned(tmp_path)

    assert manifest.licence is not None
    assert manifest.licence.granted
    scorer = build_scorer(str(tmp_path / "run" / "checkpoint"), Inference())
    candidates = tuple(Message("assistant", f"Action: open the {drawer} drawer") for drawer in ("red", "blue"))
    state = (Message("user", "Find the coin of a guest that is new."),)
    [result] = scorer.score([ScoreRequest(state, candidates)])
    assert result.q_values[1] > result.q_values[0]


def test_a_licence_by_credit_says_nothing_of_tasks_whose_replays_differ(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"task_id": "t", "error": "e", "replays_differ": 1, "of_tasks": 120}\n')
    licence = learned(tmp_path).licence
    assert licence is not None
    assert not licence.granted
    told = "; 1 of 120 tasks failed because replays differ, and chance chose the others, so credit gives no licence"
    assert licence.reason.endswith(told)


def test_the_same_run_again_learns_the_same_under_a_salt_of_its_own(tmp_path: Path) -> None:
    first, again, other = (
        learned(tmp_path, salt="", output=tmp_path / name).files[WEIGHTS] for name in ("run", "run", "other")
    )
    assert first == again != other


@pytest.mark.parametrize("format_", [None, "messages"])
def test_a_folder_whose_recording_is_called_like_rows_is_read(format_: str | None, tmp_path: Path) -> None:
    (tmp_path / "recorded").mkdir()
    recording(tmp_path / "recorded" / "rows.jsonl", count=30)
    config = LearnConfig(source=(tmp_path / "recorded",), output=tmp_path / "run", format=format_)
    assert run_learn(config).metrics["episodes"] == 30


def test_luck_has_no_licence_and_the_reason_is_kept(tmp_path: Path) -> None:
    learned(tmp_path, luck=True)

    manifest = read_manifest(tmp_path / "run" / "checkpoint")

    assert manifest is not None
    assert manifest.licence is not None
    assert not manifest.licence.granted
    shown = Console(record=True, width=200)
    show_manifest(manifest, shown)
    assert "licence: none" in shown.export_text()


@pytest.mark.parametrize(
    ("things", "prizes", "said"),
    [
        (
            2,
            "RIGHT",
            "2 tasks are too few to tell what it is worth in new ones; if your agent gets the same tasks again",
        ),
        (120, "all", "every episode ended with 1, so nothing tells good actions from bad ones"),
        (120, "RIGHT", ""),
    ],
)
def test_what_more_of_the_same_episodes_would_not_mend_is_said(
    things: int, prizes: str, said: str, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in recording(tmp_path / "chats.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["task_id"] = f"{number % things}"
        row["reward"] = row["reward"] if prizes == "RIGHT" else 1.0
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    shown = Console(record=True, width=200)

    run_learn(LearnConfig(source=(source,), output=tmp_path / "run", salt="00ff"), console=shown)

    *before, last = shown.export_text().splitlines()
    assert last.startswith(said or "licence: granted")
    assert any("at temperature 0, compare" in line for line in before) != bool(said)


def test_the_same_salt_makes_the_same_weights_and_none_makes_others(tmp_path: Path) -> None:
    source = recording(tmp_path / "chats.jsonl")

    def weights(name: str, salt: str) -> bytes:
        run_learn(LearnConfig(source=(source,), output=tmp_path / name, salt=salt))
        return (tmp_path / name / "checkpoint" / WEIGHTS).read_bytes()

    assert weights("a", "aa") == weights("b", "aa")
    assert weights("c", "") != weights("d", "")


def test_a_record_without_an_episode_is_refused_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = recording(tmp_path / "chats.jsonl")
    with source.open("a") as file:
        file.write('{"messages": []}\n')
    config = LearnConfig(source=(source,), output=tmp_path / "run")

    with pytest.raises(RecordError, match=rf"{re.escape(str(source))}, line 121: .*skip"):
        run_learn(config)
    manifest = run_learn(config.model_copy(update={"skip_bad": True, "output": tmp_path / "r"}))

    assert manifest.metrics["episodes"] == 120
    assert "left out: 1; the first: chats.jsonl, line 121" in capsys.readouterr().err


def test_a_source_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        run_learn(LearnConfig(source=(tmp_path / "missing",), output=tmp_path / "run"))


def test_weights_that_were_changed_are_refused(tmp_path: Path) -> None:
    learned(tmp_path, bits=8)
    folder = tmp_path / "run" / "checkpoint"
    assert is_feature_q(folder)
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)

    with pytest.raises(CheckpointError, match="sha256"):
        load_feature_q(folder)


def test_a_checkpoint_reads_the_words_that_it_learned_from(tmp_path: Path) -> None:
    learned(tmp_path)

    model, _ = load_feature_q(tmp_path / "run" / "checkpoint")

    assert model.hasher.vocabulary is not None
    known = set(model.hasher.hashes([entry("ring", TASK), entry("coin", TASK)]).tolist())
    assert set(model.hasher.vocabulary.tolist()) == known


def test_a_checkpoint_measures_numbers_as_where_it_learned(tmp_path: Path) -> None:
    sizes = Sizes(np.array([7, 9], np.uint64), np.arange(8, dtype=np.float32).reshape(2, 4))
    hasher = Hasher(b"salt", bits=8, vocabulary=np.zeros(0, np.uint64), sizes=sizes)
    nothing = np.zeros(1 << 8, np.float32)
    model = feature_q_of(nothing, nothing, mean=0.0, hasher=hasher)
    manifest = Manifest(kind="features", name="own")
    domain = Domain(unknown_limit=0.1, missing_limit=0.1)

    save_feature_q(tmp_path, model, manifest, domain=domain)

    loaded = load_feature_q(tmp_path)[0].hasher.sizes
    assert loaded is not None
    assert np.array_equal(loaded.places, sizes.places)
    assert np.array_equal(loaded.quantiles, sizes.quantiles)

    for quantiles in (sizes.quantiles[:, :3], sizes.quantiles[:, ::-1], sizes.quantiles * np.nan):
        broken = replace(sizes, quantiles=quantiles.copy())
        wrong = replace(model, hasher=hasher.reading(nothing[:0].astype(np.uint64), broken))
        save_feature_q(tmp_path, wrong, manifest, domain=domain)
        with pytest.raises(CheckpointError, match=r"size_quantiles .* 4 .*size_places"):
            load_feature_q(tmp_path)


@pytest.mark.parametrize("version", [1, 99])
def test_features_of_another_version_are_refused(version: int, tmp_path: Path) -> None:
    learned(tmp_path, bits=8)
    folder = tmp_path / "run" / "checkpoint"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"features_version": version}))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["config.json"] = sha256_of(folder / "config.json")
    (folder / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(CheckpointError, match=f"version {version};.* learn"):
        load_feature_q(folder)


@pytest.mark.parametrize("decided", [False, True])
def test_paths_of_trees_are_episodes_and_candidates_of_decision_groups_belong_to_one(
    decided: bool, tmp_path: Path
) -> None:
    def node(number: int, drawer: str, reward: float) -> NodeRow:
        action = f"Action: open the {drawer} drawer"
        ending = RolloutRow(outcome_reward=reward, steps=1, terminated=True)
        return NodeRow(
            rollouts=(ending,) if decided else (),
            taken=decided and number == 1,
            id=number,
            parent=0,
            depth=1,
            action=action,
            observation="Open.",
            reward=reward,
            terminated=True,
            source="policy",
        )

    folder = tmp_path / "trees"
    folder.mkdir()
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(20):
            tree = TreeRow(
                task_id=f"{number}",
                kind="find",
                environment="drawers",
                first_observation=f"Find the ring of guest {number}.",
                nodes=(node(1, "red", 1.0), node(2, "blue", 0.0)),
                draws=2,
            )
            file.write(tree.model_dump_json() + "\n")

    manifest = run_learn(LearnConfig(source=(folder,), output=tmp_path / "run"))

    assert manifest.metrics["episodes"] == (20 if decided else 40)
    assert manifest.licence is not None
    assert manifest.licence.decisions == 20
    assert manifest.licence.granted
