"""An engine whose libraries are missing names its extra, wherever they are imported."""

from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.training.environments.alfworld.engines.textworld import EnginePool, TextWorldEnvironment


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast_downward.py").write_text("raise ImportError('no planner here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    pool = EnginePool(processes=1)
    environment = TextWorldEnvironment(pool, tmp_path / "game.tw-pddl")
    with pytest.raises(ConfigError, match=r"TextWorld .*\(.*here\); pip install '\.\[alfworld\]'"):
        environment.reset()
    environment.close()
    pool.close()
