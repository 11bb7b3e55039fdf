"""Tools and few-shot turns under which rows were drawn, from the run that drew them."""

import json
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message
from qguide.training.environments.intercode_sql.bundle import INTERCODE_SQL_TOOLS
from qguide.training.environments.registry import environment_config
from qguide.training.jobs.choice_regret import chat_of_rows

LAMP = "tests.support.own_environments:GymLamp"


def test_a_registered_environment_has_them_itself(tmp_path: Path) -> None:
    assert chat_of_rows(tmp_path, "intercode-sql-tools") == INTERCODE_SQL_TOOLS.chat
    unknown = chat_of_rows(tmp_path, "somewhere")
    assert (unknown.tools, unknown.examples) == ((), ())


def test_few_shot_turns_of_a_table_are_read_beside_the_rows(tmp_path: Path) -> None:
    examples = [{"role": "user", "content": "dark"}, {"role": "assistant", "content": "press 1"}]
    table = environment_config({"name": LAMP, "examples": examples}).model_dump(mode="json")
    (tmp_path / "config.json").write_text(json.dumps({"environment": table}))
    for path in (tmp_path, tmp_path / "rows.jsonl"):
        turns = chat_of_rows(path, LAMP).examples
        assert turns == (Message("user", "dark"), Message("assistant", "press 1"))


@pytest.mark.parametrize("table", [None, "fake", {"name": "fake"}])
def test_unknown_few_shot_turns_are_refused(tmp_path: Path, table: object) -> None:
    if table is not None:
        (tmp_path / "config.json").write_text(json.dumps({"environment": table}))
    with pytest.raises(ConfigError, match=r"GymLamp, .*`groups`, .*config\.json"):
        chat_of_rows(tmp_path, LAMP)
