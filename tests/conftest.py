"""Fixtures and settings that every test shares; real games and databases where available."""

import functools
import gc
import logging
import os
import ssl
import tarfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from stamina.instrumentation import set_on_retry_hooks

from qguide.qnet.errors import ConfigError
from qguide.training.environments.alfworld.bundle import write_games
from qguide.training.environments.sciworld.simulator import find_simulator
from tests.support import limits
from tests.support.alone import put_alone
from tests.support.mariadb_dump import installed, serving

# Tiny models gain nothing from a second thread, and on a busy machine two that wait for each other
# are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each client of httpx reads the machine's certificates, which costs more than most tests do.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# No property depends on speed: an example may take as long as a busy machine needs for it.
# Every run draws others.
settings.register_profile("any-speed", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")

_DATA = Path(os.environ.get("QGUIDE_DATA", Path(__file__).parents[2] / "shared" / "data"))

GENERATED_GAMES = 60

_STARTS_SERVERS = frozenset(
    {
        "CliRunner",
        "EnginePool",
        "Fitter",
        "RedisServer",
        "ScriptedVllm",
        "VllmProcess",
        "child",
        "fresh_process",
        "needs_helm",
        "process_cost",
        "run_forked",
        "run_tests",
        "run_with_hub",
        "serving",
        "serving_app",
        "serving_process",
        "subprocess",
        "worker_processes",
    }
)
"""Names by which a test module starts a server, a command or another process."""


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run from the process that controls it."""
    limits.pytest_configure(config)
    # By default structlog draws a traceback with all its variables, for seconds.
    renderer = structlog.get_config()["processors"][-1]
    renderer.exception_formatter = structlog.dev.plain_traceback


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start servers, so that `make test-fast` can leave them out.

    Their files come first: no worker shall begin one of the longest when the others end.
    """
    put_alone(items)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        named = _STARTS_SERVERS & vars(item.module).keys()
        if named or {
            "address",
            "games_dir",
            "mariadb_installed",
            "ray_cluster",
            "real_games_dir",
            "sciworld_installed",
            "textworld_installed",
        } & set(item.fixturenames):
            item.add_marker("server")
    starting = {item.path for item in items if item.get_closest_marker("server")}
    items.sort(key=lambda item: item.path not in starting)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare every collection of garbage the walk through modules and collected tests.

    They stay to the end: walks during the collection of tests, and one after it, find hardly
    anything, and cost a quarter of it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _logs_end_with_their_test() -> Iterator[None]:
    """Remove the log handlers of a test that runs `serve` here, whose streams are closed."""
    root, hook = logging.getLogger(), threading.excepthook
    level = root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        set_on_retry_hooks(None)
        threading.excepthook = hook
        root.setLevel(level)
        for handler in [h for h in root.handlers if type(h) is logging.StreamHandler]:
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def real_games_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ALFWorld's 140 valid_seen games, unpacked; skips if QGUIDE_DATA lacks them."""
    archive = _DATA / "alfworld" / "games_valid_seen.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no real games: {archive} is missing; set QGUIDE_DATA")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as games:
        games.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def generated_games_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated ALFWorld games, in files and folders as the real ones have them."""
    folder = tmp_path_factory.mktemp("generated")
    write_games(folder, count=GENERATED_GAMES, first_seed=0)
    return folder


@pytest.fixture(scope="session", params=["generated", pytest.param("real", marks=pytest.mark.slow)])
def games_dir(request: pytest.FixtureRequest) -> Path:
    """Generated games, and the real ones where QGUIDE_DATA has them."""
    folder: Path = request.getfixturevalue(f"{request.param}_games_dir")
    return folder


@pytest.fixture(scope="session")
def intercode_sql_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """InterCode-SQL's file of tasks and its unpacked databases; skips if they are missing."""
    folder = _DATA / "intercode_sql"
    archive = folder / "spider_dev_20dbs_sqlite.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no InterCode-SQL: {archive} is missing; set QGUIDE_DATA")
    databases = tmp_path_factory.mktemp("intercode-sql")
    with tarfile.open(archive) as files:
        files.extractall(databases, filter="data")
    return folder / "tasks.json", databases


@pytest.fixture(scope="session")
def hotpotqa_questions() -> Path:
    """HotPotQA's questions with their paragraphs; skips if they are missing."""
    path = _DATA / "hotpotqa" / "questions.json.xz"
    if not path.is_file():
        pytest.skip(f"no HotPotQA: {path} is missing; set QGUIDE_DATA")
    return path


@pytest.fixture(scope="session")
def recorded_shopping_episodes() -> Path:
    """ReAct's recorded WebShop episodes; skips if they are missing."""
    path = _DATA / "webshop" / "react_episodes.json.xz"
    if not path.is_file():
        pytest.skip(f"no recorded WebShop episodes: {path} is missing; set QGUIDE_DATA")
    return path


@pytest.fixture(scope="session")
def recorded_sql_episodes() -> Path:
    """Recorded LLM episodes on InterCode-SQL; skips if they are missing."""
    path = _DATA / "intercode_sql" / "recorded_llm_episodes.jsonl.xz"
    if not path.is_file():
        pytest.skip(f"no recorded episodes: {path} is missing; set QGUIDE_DATA")
    return path


@pytest.fixture(scope="session")
def sciworld_indices() -> Path:
    """Folder of the papers' lists of ScienceWorld tasks; skips if they are missing."""
    folder = _DATA / "sciworld"
    if not (folder / "train_indices.json").is_file():
        pytest.skip(f"no ScienceWorld tasks: {folder} is missing; set QGUIDE_DATA")
    return folder


@pytest.fixture(scope="session")
def sciworld_installed() -> None:
    """Skip if ScienceWorld's simulator or Java is missing."""
    try:
        find_simulator()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mariadb_installed() -> None:
    """Skip if there is no MariaDB server or no client library."""
    pytest.importorskip("pymysql")
    if installed("mariadbd") is None:
        pytest.skip("there is no mariadbd; install it (Debian: mariadb-server)")


@pytest.fixture(scope="session")
def intercode_sql_dsn(
    mariadb_installed: None, intercode_sql_data: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An account of a MariaDB that holds the benchmark's dump."""
    dump = intercode_sql_data[0].with_name("ic_spider_dbs.sql").read_text(encoding="utf-8")
    reader = "CREATE USER reader@localhost; GRANT SELECT ON *.* TO reader@localhost;"
    with serving(tmp_path_factory.mktemp("sql"), f"{reader}\n{dump}") as address:
        yield f"mysql://reader@{address}"


@pytest.fixture(scope="session")
def textworld_installed() -> None:
    """Skip if the real engine is not installed."""
    pytest.importorskip("textworld")
    pytest.importorskip("alfworld")
