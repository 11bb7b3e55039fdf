"""A plan: which stage needs which, derived from what the jobs read and write."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from qguide.jobs.table import JOBS
from qguide.pipelines.config import load_pipeline
from qguide.pipelines.plan import MODEL_FIELDS, Plan, build_plan
from qguide.qnet.errors import ConfigError
from tests.support.serving import ROOT

EMBEDDED = ROOT / "training/configs/alfworld/embedded/pipeline.toml"
NO_MODELS = {
    "address", "answer", "api_key_variable", "classifiers", "criteria", "device", "environment",
    "episodes", "families", "format", "groups", "instructions", "judge", "judged_in", "judges",
    "learned_in", "messages_key", "methods", "model", "model_key", "models", "name", "outcome_key", "parameters",
    "phrases", "reward_key", "runs", "salt",
    "slice", "target", "target_modules", "task_key", "upstreams", "weights",
}  # fmt: skip
"""Fields of text, in any job, that name neither a file nor a model."""


def write_files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs: games to trajectories, those to a policy, and trees of the policy."""
    monkeypatch.chdir(tmp_path)
    write_files(
        tmp_path,
        collect='output = "runs/expert"\n[environment]\ncount = 3',
        sft='trajectories = ["runs/expert"]\noutput = "runs/sft"\n[optimization]\nprocesses = 2',
        explore='policy = "runs/sft/checkpoint"\noutput = "runs/trees"\n',
        pipeline="""
            output = "runs/pipeline"
            slots = 2
            [stages.trees]
            job = "explore"
            config = "explore.toml"
            set = ["parallel=7"]
            [stages.policy]
            job = "sft"
            config = "sft.toml"
            [stages.expert]
            job = "collect"
            config = "collect.toml"
        """,
    )
    return tmp_path


def plan_of(folder: Path, *overrides: str, only: Sequence[str] = (), **options: Any) -> Plan:
    return build_plan(load_pipeline(folder / "pipeline.toml", overrides, **options), only=only)


@pytest.mark.parametrize("name", ["pipeline_network", "pipeline_recorded"])
def test_learners_of_ones_own_data_are_chosen_among_once_all_are_trained(name: str, tmp_path: Path) -> None:
    recordings = [f"{which}={tmp_path}" for which in ("recorded", "held_back")]
    overrides = ["environment=fake"] if name == "pipeline_network" else recordings
    stages = build_plan(load_pipeline(ROOT / f"training/configs/own/{name}.toml", overrides)).stages
    assert {"learned", "network"} <= set(stages["chosen"].needs)
    assert {"trunk", "labels"} <= set(stages["network"].needs)
    assert set(stages["learned"].needs).isdisjoint({"held_back", "held_back_labels"})


def test_a_trunk_of_ones_own_leaves_out_the_stage_that_trains_one(tmp_path: Path) -> None:
    overrides = ["environment=fake", f"network.trunk={tmp_path}"]
    pipeline = load_pipeline(ROOT / "training/configs/own/pipeline_network.toml", overrides)
    plan = build_plan(pipeline, only=["played"])
    assert set(plan.stages) - plan.wanted == {"trunk"}


def test_a_stage_needs_no_job_file_where_its_overrides_have_all(files: Path) -> None:
    write_files(
        files,
        pipeline="""
            output = "runs/pipeline"
            [stages.trees]
            job = "explore"
            set = ["policy=embedded", "output=runs/trees", "environment.count=3"]
        """,
    )
    overrides = ("policy=embedded", "output=runs/trees", "environment.count=3")
    expected = ("explore", *(part for one in overrides for part in ("--set", one)))
    assert plan_of(files).stages["trees"].arguments == expected


def test_a_stage_needs_those_whose_output_it_reads(files: Path) -> None:
    plan = plan_of(files)
    assert {name: stage.needs for name, stage in plan.stages.items()} == {
        "trees": ("policy",),
        "policy": ("expert",),
        "expert": (),
    }
    assert [stage.name for stage in plan.order()] == ["expert", "policy", "trees"]
    assert plan.stages["policy"].output == files / "runs/sft"


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (["policy"], ["expert", "policy"]),
        (["expert"], ["expert"]),
        (["expert", "trees"], ["expert", "policy", "trees"]),
        ([], ["expert", "policy", "trees"]),
    ],
)
def test_some_stages_are_run_with_those_that_they_need(files: Path, only: list[str], wanted: list[str]) -> None:
    plan = plan_of(files, only=only)
    assert [stage.name for stage in plan.order()] == wanted
    assert set(plan.stages) == {"expert", "policy", "trees"}


def test_what_a_stage_reads_has_to_be_there_only_where_it_is_run(files: Path) -> None:
    lost = 'policy.trajectories=["runs/lost"]'
    plan = plan_of(files, lost, only=["expert"])
    assert [stage.name for stage in plan.order()] == ["expert"]
    for only in ([], ["policy"], ["trees"]):
        with pytest.raises(ConfigError, match=r"policy .*trajectories = runs/lost,"):
            plan_of(files, lost, only=only)


def test_a_source_with_a_star_is_there_if_it_names_something(files: Path) -> None:
    (files / "asked/one").mkdir(parents=True)
    assert plan_of(files, 'policy.trajectories=["asked/*"]', only=["policy"]).order()
    with pytest.raises(ConfigError, match=r"policy .*trajectories = told/\*,"):
        plan_of(files, 'policy.trajectories=["told/*"]', only=["policy"])


def test_rows_at_an_address_are_looked_for_by_the_job(files: Path) -> None:
    plan = plan_of(files, 'policy.trajectories=["s3://bucket/expert"]', only=["policy"])
    assert [stage.name for stage in plan.order()] == ["policy"]


def test_a_stage_that_is_not_there_cannot_be_run(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only tree: .* trees, policy, expert$"):
        plan_of(files, only=["tree"])


def test_a_stage_takes_as_many_slots_as_it_has_processes(files: Path) -> None:
    assert {name: stage.slots for name, stage in plan_of(files).stages.items()} == {
        "trees": 1,
        "policy": 2,
        "expert": 1,
    }
    assert plan_of(files, slots=1).stages["policy"].slots == 1


def test_a_path_in_a_named_table_of_a_job_is_read_too(files: Path) -> None:
    (files / "explore.toml").write_text(
        'policy = "embedded"\noutput = "runs/trees"\nguide = "classify:value"\n'
        '[inference.classifiers.value]\nurl = "http://127.0.0.1:9/"\n'
        'tokenizer = "runs/sft/checkpoint"\n'
    )
    trees = plan_of(files).stages["trees"]
    assert trees.needs == ("policy",)
    (read,) = (read for read in trees.reads if read.field.startswith("inference"))
    assert read.field == "inference.classifiers.value.tokenizer"
    assert read.path == files / "runs/sft/checkpoint"
    hub = plan_of(files, 'trees.inference.classifiers.value.tokenizer="hub/classifier"')
    assert hub.stages["trees"].needs == ()


def test_overrides_follow_those_of_the_file(files: Path) -> None:
    trees = plan_of(files, "trees.parallel=9", "trees.seed=4").stages["trees"]
    assert trees.shown_command == (
        f"qguide explore --config {files}/explore.toml --set parallel=7 --set parallel=9 --set seed=4"
    )
    assert trees.config.model_dump()["parallel"] == 9


def test_a_need_that_no_file_shows_is_named(files: Path) -> None:
    text = (files / "pipeline.toml").read_text()
    (files / "pipeline.toml").write_text(text.replace('"sft.toml"', '"sft.toml"\nneeds = ["late"]'))
    with pytest.raises(ConfigError, match=r"stages\.policy\.needs .*'late'; .* trees, policy, expert$"):
        plan_of(files)
    (files / "pipeline.toml").write_text(text.replace('"collect.toml"', '"collect.toml"\nneeds = ["trees"]'))
    with pytest.raises(ConfigError, match="trees -> expert -> policy -> trees"):
        plan_of(files)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.output=runs/expert"], "policy .*expert .*/runs/expert; .*output"),
        (["trees.output=runs/expert/trees"], "trees .*expert .*/runs/expert/trees .*/runs/expert; .*output"),
        (["policy.output=runs/pipeline"], "policy .*/runs/pipeline, .*logs"),
        (["policy.output=runs/pipeline/logs"], "policy .*/runs/pipeline/logs, .*logs"),
        (["trees.output=runs", "expert.output=e", "policy.output=p"], "trees .*/runs, .*logs"),
        (["trees.policy=runs/trees/checkpoint"], "trees .*/runs/trees; .*change"),
        (['policy.trajectories=["elsewhere"]'], "policy .*trajectories = elsewhere,"),
        (["tree.parallel=9"], r"--set 'tree\.parallel=9': .* trees, policy, expert$"),
        (["parallel=9"], "--set 'parallel=9' .*NAME=value"),
        (["trees.paralel=9"], r"explore\.toml .*\n  paralel: .* calls, "),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(files: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(files, *overrides)


def test_stages_may_write_beside_the_logs_of_the_pipeline(files: Path) -> None:
    plan = plan_of(files, output=Path("runs"))
    assert plan.stages["policy"].needs == ("expert",)


def test_an_unknown_job_is_refused(files: Path) -> None:
    text = (files / "pipeline.toml").read_text()
    (files / "pipeline.toml").write_text(text.replace('"explore"', '"expand"'))
    with pytest.raises(ConfigError, match=r"'expand' .*import, learn"):
        plan_of(files)


def test_the_embedded_models_are_made_in_the_order_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = build_plan(load_pipeline(EMBEDDED))
    assert {name: (stage.slots, set(stage.needs)) for name, stage in plan.stages.items()} == {
        "expert": (1, set()),
        "sft": (2, {"expert"}),
        "more_corrections": (1, {"sft"}),
        "corrections": (1, {"sft"}),
        "sft_corrections": (2, {"sft", "corrections", "more_corrections"}),
        "groups": (1, {"sft_corrections"}),
        "more_groups": (1, {"sft_corrections"}),
        "groups_held_back": (1, {"sft_corrections"}),
        "qnet": (1, {"sft_corrections", "groups", "more_groups", "groups_held_back"}),
    }
    assert plan.slots == 2


def test_each_iteration_of_ipr_needs_the_agent_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/alfworld/train").mkdir(parents=True)
    plan = build_plan(load_pipeline(ROOT / "training/configs/alfworld/pipeline_ipr.toml"))
    needs = {name: set(stage.needs) for name, stage in plan.stages.items()}
    assert needs["pairs_1"] == {"expert", "sft"}
    assert needs["agent_1"] == {"sft", "pairs_1"}
    assert needs["pairs_3"] == {"expert", "sft", "agent_2", "pairs_1", "pairs_2"}
    assert needs["agent_4"] == {"sft", "pairs_4", "agent_3"}


def test_each_round_of_agentprm_needs_the_values_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/alfworld/train").mkdir(parents=True)
    plan = build_plan(load_pipeline(ROOT / "training/configs/alfworld/pipeline_agentprm.toml"))
    needs = {name: set(stage.needs) for name, stage in plan.stages.items()}
    assert needs["labels_1"] == {"trees"}
    assert needs["qnet_1"] == {"sft", "labels_1"}
    assert needs["labels_2"] == {"trees", "qnet_1"}
    assert needs["labels_3"] == {"trees", "qnet_2"}
    assert needs["qnet_3"] == {"sft", "labels_3"}


def test_the_table_of_methods_plays_what_each_method_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for games in ("train", "valid_seen"):
        (tmp_path / "data/alfworld" / games).mkdir(parents=True)
    pipeline = load_pipeline(ROOT / "training/configs/alfworld/low/pipeline_methods.toml")
    plan = build_plan(pipeline)
    needs = {name: set(stage.needs) for name, stage in plan.stages.items()}
    assert needs["rft"] == {"expert", "sft", "samples"}
    assert needs["state_value"] == {"sft", "searches_labels", "groups_held_back"}
    assert needs["labels_gae"] == {"trees", "qnet_td_1"}
    assert needs["qnet_td_2"] == {"sft", "labels_td_2", "groups_held_back"}
    assert needs["ipr_pairs_2"] == {"expert", "sft", "ipr", "ipr_pairs"}
    assert needs["ipr_2"] == {"sft", "ipr", "ipr_pairs_2"}
    trained = {name for name, stage in pipeline.stages.items() if stage.job.startswith("train-")}
    played = {name for name, stage in pipeline.stages.items() if stage.job == "evaluate"}
    not_played = trained - {need for name in played for need in needs[name]}
    assert not_played == {"qnet_td_1"}  # the values of the second round


def test_the_variations_play_what_they_trained_on_the_runs_of_the_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configs = ROOT / "training/configs/alfworld/low"
    for folder in ("data/alfworld/train", "data/alfworld/valid_seen"):
        (tmp_path / folder).mkdir(parents=True)
    methods = load_pipeline(configs / "pipeline_methods.toml")
    for stage in build_plan(methods).stages.values():
        (stage.output / "checkpoint").mkdir(parents=True)
    pipeline = load_pipeline(configs / "pipeline_variations.toml")
    plan = build_plan(pipeline)
    needs = {name: set(stage.needs) for name, stage in plan.stages.items()}
    assert needs["ipr_modelled_pairs"] == {"step_reward_model"}
    assert needs["step_dpo_more"] == {"step_pairs_more"}
    assert needs["step_pairs_more"] == {"searches_more"}
    trained = {name for name, stage in pipeline.stages.items() if stage.job.startswith("train-")}
    played = {name for name, stage in pipeline.stages.items() if stage.job == "evaluate"}
    used = {need for name in played for need in needs[name]}
    assert trained - used == {"step_reward_model"}  # in place of roll-outs


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("hotpotqa/methods/pipeline", ["hotpotqa/pipeline"]),
        ("webshop/methods/pipeline", ["webshop/pipeline"]),
        ("webshop/methods/pipeline_variations", ["webshop/pipeline", "webshop/methods/pipeline"]),
        ("webshop/methods/pipeline_baselines", ["webshop/pipeline"]),
    ],
)
def test_the_methods_of_another_environment_read_the_runs_of_its_pipeline(
    name: str, before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    configs = ROOT / "training/configs"
    for earlier in before:
        for stage in build_plan(load_pipeline(configs / f"{earlier}.toml")).stages.values():
            (stage.output / "checkpoint").mkdir(parents=True)
            (stage.output / "policy").mkdir()
    pipeline = load_pipeline(configs / f"{name}.toml")
    plan = build_plan(pipeline)
    trained = {name for name, stage in pipeline.stages.items() if stage.job.startswith("train-")}
    for name in trained:
        assert plan.stages[f"{name}_played"].needs == (name,)


def texts_in(kind: type[BaseModel]) -> Iterator[str]:
    """Names of all fields whose value may be text, in nested tables too."""
    for name, field in kind.model_fields.items():
        for one in types_in(field.annotation):
            if one is str:
                yield name
            elif isinstance(one, type) and issubclass(one, BaseModel):
                yield from texts_in(one)


def types_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from types_in(argument)


@pytest.mark.parametrize("job", JOBS)
def test_every_field_of_text_is_known_to_name_a_model_or_none(job: str) -> None:
    unknown = set(texts_in(JOBS[job].config_type())) - MODEL_FIELDS.keys() - NO_MODELS
    assert unknown == set(), "add it to MODEL_FIELDS, or to NO_MODELS"
