"""Chat format under which rows were drawn: its tools and few-shot turns, which no row holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qguide.qnet.errors import ConfigError
from qguide.training.environments.registry import ENVIRONMENTS, environment_config, find_environment
from qguide.training.trajectory import ChatFormat


def chat_of_rows(path: Path, environment: str) -> ChatFormat:
    """The chat format of the run that wrote some rows.

    Args:
        path: the run folder, or its file of rows.
    """
    if environment not in ENVIRONMENTS and ":" not in environment:
        return ChatFormat()
    bundle = find_environment(environment)
    if bundle.configure is None:
        return bundle.chat
    table = _table_beside(path)
    if table.get("name") != environment:
        raise ConfigError(
            f"{path}: nothing says which tools and few-shot turns the policy had in {environment}, "
            "so its draws would be others; name the run folder of `groups`, with its config.json"
        )
    return bundle.configure(environment_config(table)).chat


def _table_beside(rows: Path) -> Mapping[str, Any]:
    """The `[environment]` table of the run that wrote the rows; empty if there is none."""
    config = (rows if rows.is_dir() else rows.parent) / "config.json"
    if not config.is_file():
        return {}
    table = json.loads(config.read_text(encoding="utf-8")).get("environment")
    return table if isinstance(table, Mapping) else {}
