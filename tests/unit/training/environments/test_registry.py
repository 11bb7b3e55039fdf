"""Names of environments become suites, or the error lists the names."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from qguide.qnet.decision.perturbation import find_task
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.loading import embedded_path
from qguide.qnet.models.manifest import read_manifest
from qguide.qnet.types import Message
from qguide.training.configs.job_files import load_config, read_environment
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.alfworld.engines.textworld import TextWorldEnvironment
from qguide.training.environments.corridor import CorridorConfig, CorridorSuite
from qguide.training.environments.registry import (
    ENVIRONMENTS,
    build_selected_suite,
    build_suite,
    default_environment,
    environment_config,
    find_environment,
    task_markers_of,
)
from qguide.training.jobs.explore import ExploreConfig

ROOT = Path(__file__).parents[4]


def test_the_fake_needs_nothing() -> None:
    assert len(build_suite(CorridorConfig()).tasks) == 100
    ids = [task.id for task in build_suite(CorridorConfig(count=2, first_seed=5)).tasks]
    assert ids == ["corridor:5", "corridor:6"]


def test_alfworld_without_a_folder_is_generated() -> None:
    tasks = build_suite(AlfWorldConfig(count=2, first_seed=3)).tasks
    assert [task.source for task in tasks] == ["generated:3", "generated:4"]


def test_generated_games_are_for_either_engine() -> None:
    suite = build_suite(AlfWorldConfig(engine="textworld", count=1))
    assert isinstance(suite.make(suite.tasks[0]), TextWorldEnvironment)
    suite.close()


def test_an_empty_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unpack"):
        build_suite(AlfWorldConfig(games=tmp_path))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="alfworld, fake"):
        environment_config({"name": "minecraft"})


def test_a_job_reads_and_writes_the_table_of_what_it_names(tmp_path: Path) -> None:
    config = load_config(ExploreConfig, None, ["output=out", "environment.name=fake", "environment.count=3"])
    assert config.environment == CorridorConfig(count=3)
    assert ExploreConfig.model_validate(config.model_dump(mode="json")) == config
    assert default_environment() == AlfWorldConfig()


def test_an_unknown_field_lists_those_of_the_environment() -> None:
    overrides = ["output=out", "environment.name=fake", "environment.games=there"]
    with pytest.raises(ConfigError, match=r"environment\.games: .* count, first_seed"):
        load_config(ExploreConfig, None, overrides)
    with pytest.raises(ConfigError, match=r"games: .* count, first_seed"):
        read_environment({"name": "fake", "games": "there"})


class Shop(EnvironmentConfig):
    """The table of an environment that lies outside QGuide."""

    name: str = "shops.shop:SHOP"
    aisles: int = 1


def test_an_environment_elsewhere_is_found_by_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shops")
    module.__dict__["SHOP"] = EnvironmentBundle(
        name="shops:SHOP", config=Shop, build_suite=lambda shop: CorridorSuite(0, shop.aisles)
    )
    module.__dict__["STREET"] = 3
    monkeypatch.setitem(sys.modules, "shops", module)
    config = environment_config({"name": "shops:SHOP", "aisles": 4})
    assert len(build_selected_suite(config).tasks) == 4
    for name, message in (
        ("shops:BAKERY", "cannot be imported.*BAKERY"),
        ("nowhere.shops:SHOP", "cannot be imported.*nowhere"),
        ("shops:STREET", "is of type int; name an EnvironmentBundle"),
    ):
        with pytest.raises(ConfigError, match=message):
            environment_config({"name": name})


def test_an_environment_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As under a console script, whose search path has no current folder.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corner_lamp.py").write_text("class Lamp:\n    def reset(self): ...\n    def step(self, action): ...\n")
    try:
        assert find_environment("corner_lamp:Lamp").name == "corner_lamp:Lamp"
    finally:
        sys.modules.pop("corner_lamp", None)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.server] if name == "sciworld" else [])
        for name in ENVIRONMENTS
        if task_markers_of(name)
    ],
)
def test_a_task_is_found_by_the_markers_of_its_environment(name: str, request: pytest.FixtureRequest) -> None:
    if name == "sciworld":
        request.getfixturevalue("sciworld_installed")
    suite = build_suite(environment_config({"name": name}))
    environment = suite.make(suite.tasks[0])
    observation = environment.reset()
    place = find_task((Message("user", observation),), markers=find_environment(name).task_markers)
    assert 0 < place.start < place.end
    end_with_the_task = {"alfworld", "fake", "hotpotqa"}
    assert (place.end == len(observation)) == (name in end_with_the_task)
    environment.close()
    suite.close()


def test_the_embedded_policy_knows_the_markers_of_its_environment() -> None:
    manifest = read_manifest(embedded_path("policy"))
    assert manifest is not None
    assert manifest.task_markers == task_markers_of(manifest.environment) != ()
    assert task_markers_of("") == task_markers_of("somewhere") == ()


def test_only_its_own_folder_and_the_registry_know_alfworld() -> None:
    """Papers and examples may name it in words; no other code imports it or asks for its name."""
    own = ROOT / "training" / "environments"
    allowed = {own / "registry.py", *(own / "alfworld").rglob("*.py")}
    modules = {*(ROOT / "training").rglob("*.py"), *(ROOT / "qguide").rglob("*.py")}
    code = {path: path.read_text() for path in modules - allowed}
    assert len(code) > 50
    known = [
        str(path.relative_to(ROOT))
        for path, text in code.items()
        if "environments.alfworld" in text or 'if "alfworld"' in text or '== "alfworld"' in text
    ]
    assert known == []
