"""Without the extras: what is remote is served, and everything else says what to install."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from qguide.jobs.table import JOBS
from qguide.qnet.models.trunk_export import export_trunk
from qguide.qnet.packages import LEARN, MODELS, PACKAGES, REMOTE, REPORT, TRAIN
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.absent import command_without, run_without
from tests.support.scripted_vllm import scripted_vllm
from tests.support.serving import START_S, free_port, running, serving_app
from tests.support.tiny_models import save_classifier, save_policy, save_qnet

EXTRAS = sorted(set().union(*PACKAGES.values()))


def without(*extras: str) -> list[str]:
    """Packages that are missing where these extras are installed."""
    return sorted(set(EXTRAS).difference(*(PACKAGES[extra] for extra in extras)))


QGUIDE = "from qguide.cli import app; app()"
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from qguide.cli import app

for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments)
    traceback = not isinstance(result.exception, SystemExit | None)
    print(json.dumps([result.exit_code, result.stderr, traceback]))
"""
ASKED = {"messages": [{"role": "user", "content": "Your task is to: look around."}]}

pytestmark = pytest.mark.server


def test_the_server_is_imported_without_any_model_library() -> None:
    done = run_without(EXTRAS, "import qguide.server.app, qguide.cli")
    assert done.returncode == 0, done.stderr


def test_help_needs_no_extra() -> None:
    done = run_without(EXTRAS, QGUIDE, "--help")
    assert done.returncode == 0, done.stderr
    assert "train-qnet" in done.stdout


PLANS = """
from qguide.jobs.table import JOBS, find_job
from qguide.pipelines.config import load_pipeline
from qguide.training.configs.job_files import load_config
from qguide.training.shipped_files import CONFIGS

for pipeline in CONFIGS.rglob("pipeline*.toml"):
    if pipeline.parent.name != "own":  # of a package that the reader writes
        for stage in load_pipeline(pipeline).stages.values():
            load_config(find_job(stage.job).config_type(), stage.config, stage.set)
print(*(name for name, job in JOBS.items() if job.config_type()))
"""


def test_options_of_jobs_and_plans_of_pipelines_need_no_torch() -> None:
    done = run_without(["accelerate", "tokenizers", "torch", "transformers"], PLANS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(JOBS)


@contextmanager
def serving_without(absent: list[str], folder: Path, **settings: str) -> Iterator[str]:
    """The URL of `qguide serve` where these packages are missing."""
    port = free_port()
    command = command_without(absent, QGUIDE, "serve", "--port", str(port))
    variables = {f"QGUIDE_{name.upper()}": value for name, value in settings.items()}
    with running(command, port, variables, folder / "stderr.log", START_S) as started:
        yield started.url


def test_a_judge_guides_an_upstream_without_any_extra(tmp_path: Path) -> None:
    port = free_port()
    variables = {"OPENAI_API_KEY": "none"}
    with serving_app(FakeUpstream().app()) as upstream:
        models = ["--upstream", f"{upstream}/v1#fake", "--scorer", "judge:fake"]
        serve = ["serve", "--port", str(port), *models]
        command = command_without(EXTRAS, QGUIDE, *serve)
        with running(command, port, variables, tmp_path / "stderr.log", START_S) as started:
            url = f"{started.url}/v1/chat/completions"
            answer = httpx.post(url, json=ASKED, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["qguide"]["guided"] is True, answer.text


def test_an_upstream_is_guided_without_any_model_library(tmp_path: Path) -> None:
    with (
        serving_app(FakeUpstream().app()) as upstream,
        serving_without(
            EXTRAS,
            tmp_path,
            upstreams=f'{{"far": {{"url": "{upstream}/v1", "model": "fake"}}}}',
            policy="far",
            q_models='{"default": "scripted"}',
        ) as url,
    ):
        answer = httpx.post(f"{url}/v1/chat/completions", json=ASKED, timeout=60)
    assert answer.status_code == 200, answer.text
    # Of its three replies this has the best Q under the scripted Q model.
    assert "Action: go to desk 1" in answer.json()["choices"][0]["message"]["content"]


def q_values(url: str) -> list[float]:
    """Q of two candidates of one step."""
    asked = {**ASKED, "candidates": ["Action: look", "Action: inventory"]}
    answer = httpx.post(f"{url}/v1/score", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    return [float(score["q_value"]) for score in answer.json()["scores"]]


def test_a_trunk_on_a_server_is_read_without_torch(tmp_path: Path) -> None:
    checkpoint = save_qnet(tmp_path / "qnet", save_policy(tmp_path / "policy"))
    name = export_trunk(checkpoint, tmp_path / "trunk")
    with (
        scripted_vllm(tmp_path / "trunk", model=name, context=256) as vllm,
        serving_without(
            without(REMOTE),
            tmp_path,
            policy="scripted",
            q_models=f'{{"far": "{checkpoint}"}}',
            vllm_trunks=f'{{"far": {{"url": "{vllm.url}"}}}}',
        ) as url,
    ):
        assert len(set(q_values(url))) == 2


@pytest.mark.slow
def test_a_classifier_on_a_server_is_read_without_torch(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "classifier")
    with (
        scripted_vllm(folder, model="judge", context=256, classifies=True) as vllm,
        serving_without(
            without(REMOTE),
            tmp_path,
            policy="scripted",
            q_models=f'{{"far": "{folder}"}}',
            classifiers=f'{{"far": {{"url": "{vllm.url}", "model": "judge"}}}}',
        ) as url,
    ):
        assert len(set(q_values(url))) == 2


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    status: int
    stderr: str
    traceback: bool


def ends(absent: list[str], commands: Sequence[list[str]]) -> list[Ended]:
    """The ends of commands, one after the other in one process."""
    done = run_without(absent, COMMANDS, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    found = [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(commands)
    return found


TRAIN_QNET = [*("train-qnet", "--config"), "training/configs/alfworld/embedded/train_qnet.toml"]
SERVE = ["serve", "--port", "0"]  # somebody may hold the default one
SCRIPTED = [*SERVE, "--policy", "scripted"]
REFUSED: list[tuple[list[str], str, str]] = [
    (SERVE, "the policy 'embedded', which would run in this process, needs torch, which", MODELS),
    ([*SCRIPTED, "--scorer", "embedded"], "embedded, a Q model in this process, needs torch", MODELS),
    (["export-trunk", "embedded", "nowhere"], "qguide export-trunk needs torch, which is", MODELS),
    (TRAIN_QNET, "train-qnet needs", TRAIN),
    ([*SCRIPTED, "--scorer", "scripted", "--learn"], "QGUIDE_LEARN needs numpy, which is not installed", LEARN),
]
LEAST: list[tuple[list[str], str]] = [
    (["learn", "--config", "nowhere.toml"], LEARN),
    (["report", "nowhere"], REPORT),
    (["compare", "nowhere"], REPORT),
]
NO_MODEL = [*SCRIPTED, "--scorer", "runs/there/is/none"]


@pytest.fixture(scope="module")
def bare() -> Callable[[list[str]], Ended]:
    """The end of one of the commands where no extra is installed."""
    commands = [*(row[0] for row in REFUSED), *(row[0] for row in LEAST), NO_MODEL]
    found = ends(EXTRAS, commands)
    return lambda arguments: found[commands.index(arguments)]


@pytest.mark.parametrize(("arguments", "reason", "extra"), REFUSED)
def test_a_command_names_the_package_that_is_missing_and_the_extra_that_has_it(
    bare: Callable[[list[str]], Ended], arguments: list[str], reason: str, extra: str
) -> None:
    done = bare(arguments)
    assert (done.status, done.traceback) == (1, False)
    assert reason in done.stderr
    assert f"pip install '.[{extra}]'" in done.stderr


@pytest.mark.parametrize(("arguments", "extra"), LEAST)
def test_a_command_names_the_least_extra_that_it_needs(
    bare: Callable[[list[str]], Ended], arguments: list[str], extra: str
) -> None:
    done = bare(arguments)
    assert (done.status, done.traceback) == (1, False)
    assert f"pip install '.[{extra}]'" in done.stderr


@pytest.mark.parametrize("extra", [LEARN, REPORT])
def test_with_that_extra_it_runs(extra: str) -> None:
    commands = [arguments for arguments, needed in LEAST if needed == extra]
    for there in ends(without(extra, LEARN), commands):
        assert "pip install" not in there.stderr
        assert "nowhere" in there.stderr


def test_what_fits_a_q_model_is_imported_with_the_extra_for_learning_alone() -> None:
    done = run_without(without(LEARN), "import qguide.training.learning.learner")
    assert done.returncode == 0, done.stderr


def test_a_q_model_that_is_not_there_is_not_taken_for_a_missing_package(bare: Callable[[list[str]], Ended]) -> None:
    done = bare(NO_MODEL)
    assert done.status == 1
    assert "runs/there/is/none does not exist" in done.stderr
