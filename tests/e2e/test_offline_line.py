"""The whole offline line through its commands, with real (tiny) models, on corridors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.training.evaluation.records import DEFAULT_METHODS
from tests.support.corridors import write_solutions

SFT = """
trajectories = ["{runs}/expert"]
output = "{runs}/sft"
[architecture]
vocab_size = 320
hidden_size = 32
intermediate_size = 64
layers = 2
heads = 2
context = 512
[optimization]
lr = 0.01
epochs = 6
batch_tokens = 2048
"""
EXPLORE = """
output = "{runs}/trees"
policy = "{runs}/sft/checkpoint"
expert = ["{runs}/expert"]
[environment]
name = "fake"
count = 4
[exploration]
max_steps = 8
max_draws = 6
max_tokens = 16
depth = 4
"""
LABEL = """
trees = ["{runs}/trees"]
output = "{runs}/labels"
"""
TRAIN_QNET = """
labels = ["{runs}/labels"]
trunk = "{runs}/sft/checkpoint"
output = "{runs}/qnet"
head_width = 16
validation_fraction = 0.3
[optimization]
lr = 0.003
epochs = 1
"""
PAIRS = """
trees = ["{runs}/trees"]
output = "{runs}/pairs"
trajectory_pairs = true
"""
TRAIN_DPO = """
pairs = ["{runs}/pairs"]
policy = "{runs}/sft/checkpoint"
output = "{runs}/dpo"
validation_fraction = 0.3
[optimization]
lr = 0.003
epochs = 3
"""
RRO = """
output = "{runs}/rising"
policy = "{runs}/sft/checkpoint"
[environment]
name = "fake"
count = 3
[rewards]
rollouts = 1
max_steps = 4
max_tokens = 16
"""
IPR = """
output = "{runs}/ipr"
policy = "{runs}/sft/checkpoint"
expert = ["{runs}/expert"]
[environment]
name = "fake"
count = 6
[contrast]
tau = 0.0
[rewards]
rollouts = 2
max_steps = 8
max_tokens = 16
"""
TRAIN_MIXTURE = """
pairs = ["{runs}/rising", "{runs}/ipr"]
policy = "{runs}/sft/checkpoint"
output = "{runs}/mixture"
validation_fraction = 0.0
mixture = "levels"
write_policy = true
weights.sft = 1.0
[optimization]
lr = 0.003
epochs = 3
"""


def qguide(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def run_job(runs: Path, job: str, text: str) -> None:
    path = runs / f"{job}.toml"
    path.write_text(text.format(runs=runs))
    result = qguide(job, "--config", str(path))
    assert result.exit_code == 0, result.output
    trains = job == "sft" or job.startswith("train-")
    assert ("\n  checkpoint: " in result.output) == trains, "where the model is"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    write_solutions(runs, count=40)
    for job, text in (
        ("sft", SFT),
        ("explore", EXPLORE),
        ("label", LABEL),
        ("train-qnet", TRAIN_QNET),
        ("pairs", PAIRS),
        ("train-dpo", TRAIN_DPO),
    ):
        run_job(runs, job, text)
    return runs


def evaluate(trained: Path, output: Path, *more: str) -> Result:
    options = {
        "--environment": "fake",
        "--generated": "100:2",
        "--policy": f"{trained}/sft/checkpoint",
        "--qnet": f"{trained}/qnet/checkpoint",
        "--candidates": "2",
        "--seeds": "0,1",
        "--max-steps": "5",
        "--output": str(output),
        "--set": "max_tokens=16",
    }
    return qguide("evaluate", *[part for pair in options.items() for part in pair], *more)


def test_the_line_ends_in_results_for_every_method_and_seed(trained: Path, tmp_path: Path) -> None:
    result = evaluate(trained, tmp_path / "evaluation")
    assert result.exit_code == 0, result.output
    assert "q-guided less that of the others" in " ".join(result.output.split())
    results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    assert results["complete"]
    assert len(results["rows"]) == 2 * len(DEFAULT_METHODS)
    guided = [row for row in results["rows"] if row["method"] == "q-guided"]
    assert all(row["completion_tokens"] > 0 and row["policy_time_s"] > 0 for row in guided)
    assert results["config"]["policy_sha256"]
    assert results["config"]["qnet_sha256"]


def test_an_implicit_q_guides_where_a_qnet_does(trained: Path, tmp_path: Path) -> None:
    implicit = ("--qnet", f"{trained}/dpo/checkpoint", "--methods", "q-guided")
    result = evaluate(trained, tmp_path / "evaluation", *implicit)
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    assert {row["method"] for row in results["rows"]} == {"q-guided"}


@pytest.mark.slow
def test_pairs_of_step_rewards_train_the_next_agent(trained: Path, tmp_path: Path) -> None:
    for job, text in (("rro", RRO), ("ipr", IPR), ("train-dpo", TRAIN_MIXTURE)):
        run_job(trained, job, text)
    assert len((trained / "rising" / "explored.jsonl").read_text().splitlines()) == 3
    pairs = [json.loads(line) for line in (trained / "ipr/rows.jsonl").read_text().splitlines()]
    assert {(pair["source"], pair["level"]) for pair in pairs} == {("contrast", "suffix"), ("contrast", "trajectory")}
    result = evaluate(trained, tmp_path, "--methods", "greedy", "--policy", f"{trained}/mixture/policy")
    assert result.exit_code == 0, result.output


def test_labels_are_made_again_with_the_values_of_the_model_before(trained: Path, tmp_path: Path) -> None:
    train = TRAIN_QNET.replace("[optimization]", 'loss_on = "last"\nprogress_weight = 1.0\n[optimization]')
    for number, values in ((1, "gae_lambda = 1.0"), (2, f'qnet = "{trained}/qnet_td_1/checkpoint"\ngae_lambda = 0.5')):
        label = LABEL.replace("/labels", f"/labels_td_{number}") + f'target = "td"\n{values}\n'
        run_job(trained, "label", label)
        names = (("/labels", f"/labels_td_{number}"), ("/qnet", f"/qnet_td_{number}"))
        text = train
        for old, new in names:
            text = text.replace(old, new)
        run_job(trained, "train-qnet", text)
    first, second = ((trained / f"labels_td_{number}/rows.jsonl").read_text().splitlines() for number in (1, 2))
    assert len(first) == len(second)
    assert first != second
    guided = ("--qnet", f"{trained}/qnet_td_2/checkpoint", "--methods", "q-guided")
    result = evaluate(trained, tmp_path, *guided)
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_values_of_searched_states_choose_among_trajectories(trained: Path, tmp_path: Path) -> None:
    search = EXPLORE.replace("/trees", "/searches").replace('expert = ["{runs}/expert"]\n', "")
    search = search.replace("[environment]", 'strategy = "mcts"\n[environment]')
    search = search.split("[exploration]")[0] + "[mcts]\niterations = 4\nmax_steps = 8\nmax_tokens = 16\n"
    label = LABEL.replace("/trees", "/searches").replace("/labels", "/searches_labels")
    train = TRAIN_QNET.replace("/labels", "/searches_labels").replace("/qnet", "/state_value")
    train = train.replace("[optimization]", 'read_at = "observation"\nloss_on = "last"\n[optimization]')
    for job, text in (("explore", search), ("label", label + 'target = "mcts"\n'), ("train-qnet", train)):
        run_job(trained, job, text)
    verifier = f"verifier={trained}/state_value/checkpoint"
    result = evaluate(trained, tmp_path, "--methods", "verifier-best-of-n", "--set", verifier)
    assert result.exit_code == 0, result.output


def test_an_evaluation_is_not_resumed_with_other_candidates(trained: Path, tmp_path: Path) -> None:
    assert evaluate(trained, tmp_path, "--methods", "greedy").exit_code == 0
    result = evaluate(trained, tmp_path, "--methods", "greedy", "--candidates", "4")
    assert result.exit_code == 2
    assert "candidates was 2 and is 4" in " ".join(result.output.split())


def test_a_qnet_in_the_policys_place_is_refused_in_words(trained: Path, tmp_path: Path) -> None:
    result = evaluate(trained, tmp_path, "--policy", f"{trained}/qnet/checkpoint")
    assert result.exit_code == 1
    assert "policy" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect", "--config", "nowhere.toml"], "nowhere.toml"),
        (["evaluate", "--output", "out", "--methods", "guess"], "methods.0 = 'guess'"),
        (["evaluate", "--output", "out", "--generated", "7"], "FIRST:COUNT"),
    ],
)
def test_a_mistake_is_explained_without_a_traceback(arguments: list[str], message: str) -> None:
    result = qguide(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
