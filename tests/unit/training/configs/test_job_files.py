"""Job files become configurations, and mistakes in them are explained."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import load_config
from qguide.training.jobs.explore import ExploreConfig
from qguide.training.jobs.label import LabelConfig
from qguide.training.policy_training.options import SftConfig, TrainDpoConfig
from qguide.training.q_training.options import TrainQNetConfig


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(default=0.5, gt=0)
    names: tuple[str, ...] = ()


class Job(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    steps: int = 3
    inner: Inner = Inner()


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text('output = "runs/a"\nsteps = 5\n[inner]\nrate = 0.25\n')
    return path


def test_a_file_becomes_a_configuration(job_file: Path) -> None:
    assert load_config(Job, job_file) == Job(output=Path("runs/a"), steps=5, inner=Inner(rate=0.25))


@pytest.mark.parametrize(("name", "base"), [("more.toml", "job.toml"), ("in/m.toml", "../job.toml")])
def test_a_file_says_only_where_it_differs_from_another(job_file: Path, name: str, base: str) -> None:
    more = job_file.parent / name
    more.parent.mkdir(exist_ok=True)
    more.write_text(f'extends = "{base}"\nsteps = 6\n[inner]\nnames = ["a"]\n')
    expected = Job(output=Path("runs/a"), steps=6, inner=Inner(rate=0.25, names=("a",)))
    assert load_config(Job, more) == expected


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ('"job.toml"', r"job\.toml -> .*job\.toml .*`extends`"),
        ("3", r"job\.toml: extends is 3;"),
        ('"none.toml"', r"none\.toml: .* job file"),
    ],
)
def test_a_file_that_extends_what_it_cannot_is_refused(job_file: Path, base: str, message: str) -> None:
    job_file.write_text(f"extends = {base}\n")
    with pytest.raises(ConfigError, match=message):
        load_config(Job, job_file)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("steps=7", {"steps": 7}),
        ("output=runs/b", {"output": Path("runs/b")}),
        ("inner.rate=1e-3", {"inner": Inner(rate=0.001)}),
        ('inner.names=["a", "b"]', {"inner": Inner(rate=0.25, names=("a", "b"))}),
    ],
)
def test_an_override_wins_over_the_file(job_file: Path, override: str, expected: dict[str, object]) -> None:
    assert load_config(Job, job_file, [override]) == load_config(Job, job_file).model_copy(update=expected)


def test_options_win_over_the_file_and_overrides_over_options(job_file: Path) -> None:
    options = {"steps": 8, "inner.rate": 2.0, "output": None}
    job = load_config(Job, job_file, ["inner.rate=3"], options=options)
    assert job == Job(output=Path("runs/a"), steps=8, inner=Inner(rate=3.0))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["stepz=1"], "stepz: .* inner, output, steps$"),
        (["inner.rat=1"], r"inner\.rat: .* names, rate$"),
        (["inner.rate=-1"], r"inner\.rate = -1: .* 0; .*--set inner\.rate="),
        (["inner.names=[1]"], r"inner.names.0 = 1: .*--set inner.names="),
        (["steps"], "--set 'steps' .*field=value"),
        (["inner..rate=1"], r"--set 'inner\.\.rate': .*table\.field=value"),
        (["steps.rate=1"], r"^steps\.rate: steps is 5, .*table"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(job_file: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(Job, job_file, overrides)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (TrainDpoConfig, ["pairs=['p']", "policy='p'"], (1, 0.1)),
        (TrainQNetConfig, ["labels=['l']", "trunk='t'"], (2, 0.03)),
        (SftConfig, ["trajectories=['t']"], (3, 0.03)),
    ],
)
def test_a_table_of_options_leaves_the_other_defaults_of_its_job(
    kind: type[TrainDpoConfig | TrainQNetConfig | SftConfig], fields: list[str], expected: tuple[int, float]
) -> None:
    for changed in ([], ["optimization.batch_tokens=1000"], ["optimization.device='cpu'"]):
        optimization = load_config(kind, None, ["output='o'", *fields, *changed]).optimization
        assert (optimization.epochs, optimization.warmup_ratio) == expected


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)output: .* --set output=….*steps = 'many': .*integer, .* --set steps=…"
    ):
        load_config(Job, None, ["steps=many"])


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: "):
        load_config(Job, tmp_path / "no.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml .*TOML: .*line 1, column 9"):
        load_config(Job, broken)


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        (ExploreConfig, "exploration.own_steps=3", r"exploration\.own_steps: .*policy_prefix_steps"),
        (LabelConfig, "teacher=expert", "teacher: .* gae_lambda, "),
    ],
)
def test_an_unknown_field_is_refused_with_those_that_there_are(
    kind: type[BaseModel], override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(kind, None, [override])


@pytest.mark.parametrize(
    "override",
    [
        "upstreams.gpt.api_key='sk-secret'",
        "upstreams.gpt.api_key_variable='sk-secret'",
        "upstreams.gpt.url='http://me:sk-secret@host/v1'",
        "policy='http://me:sk-secret@host/v1#m'",
        "policy='http://me:pa@sk-secret@host/v1#m'",
        "policy='http://host:1/v1?key=sk-secret#m'",
        "policy='http://host:1/v1?key=sk-secret'",
        "upstreams.gpt.url='https://host/v1?key=sk-secret'",
        "upstreams.gpt.url='http://me:pa@sk-secret@host'",
        "upstreams.gpt.url='me:sk-secret@host'",
        "upstreams.gpt.url.at='http://me:sk-secret@host/v1'",
        "upstreams.gpt=[{url='https://host/v1?key=sk-secret'}, {api_key='sk-secret'}]",
        "http://me:sk-secret@host/v1",
    ],
)
def test_a_key_in_a_job_file_is_refused_and_not_repeated(tmp_path: Path, override: str) -> None:
    overrides = [f"output={tmp_path}", "upstreams.gpt.url='http://host/v1'"]
    overrides += ["upstreams.gpt.model=m", override]
    with pytest.raises(ConfigError) as refused:
        load_config(ExploreConfig, None, overrides)
    assert "sk-secret" not in str(refused.value)
