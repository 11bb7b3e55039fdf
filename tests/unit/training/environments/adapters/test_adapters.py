"""Environments of four other interfaces: found by name, played, and kept to the contract."""

import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.types import Message, ToolCall
from qguide.training.configs.job_files import load_config, read_environment
from qguide.training.environment import Environment, ToolEnvironment
from qguide.training.environments.adapters.config import AdaptedConfig
from qguide.training.environments.contract import Subject, check_environment
from qguide.training.environments.registry import (
    SelectedSuite,
    build_selected_suite,
    environment_config,
    find_environment,
)
from qguide.training.jobs.explore import ExploreConfig
from tests.support.environment_servers import agentgym_app, openenv_app
from tests.support.own_environments import GymLamp
from tests.support.serving import serving_app

HERE = "tests.support.own_environments:"
LAMP = {"name": f"{HERE}GymLamp", "count": 2, "reward_range": [0, 3], "harmless": "look"}
LEFT = "Look, or press"


def suite_of(**table: object) -> SelectedSuite:
    return build_selected_suite(environment_config(table))


def failed(**table: object) -> list[str]:
    """Rules of the contract that an environment breaks."""
    config = environment_config(table)
    suite = build_selected_suite(config)
    found = check_environment(Subject(config, suite, suite.environment.harmless))
    return [f"{one.check.rule}: {one.detail}" for one in found if one.outcome == "failed"]


def first(suite: SelectedSuite) -> Environment:
    return suite.make(suite.tasks[0])


@pytest.fixture(scope="module")
def openenv() -> Iterator[str]:
    """Name of an OpenEnv server."""
    with serving_app(openenv_app(), ws="websockets-sansio") as url:
        yield f"openenv:{url.replace('http', 'ws')}"


@pytest.fixture(scope="module", params=["id", "env_idx"])
def agentgym(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a server of either of AgentGym's families, whose first steps find it busy."""
    with serving_app(agentgym_app(request.param, busy=2)) as url:
        yield f"agentgym:{url}"


def test_a_gymnasium_environment_keeps_to_the_contract() -> None:
    assert failed(**LAMP) == []


def test_a_trl_class_keeps_to_the_contract() -> None:
    tasks = {"name": f"{HERE}Shop", "count": 2, "harmless": "look({})"}
    assert [line.partition(":")[0] for line in failed(**tasks)] == [
        "the first observation is the task's own, and the same each time",  # no prompt, one start
        "episodes run side by side",
    ]


def test_an_openenv_server_keeps_to_the_contract(openenv: str) -> None:
    table = {"name": openenv, "action_field": "command", "invalid": [LEFT], "harmless": "look"}
    assert failed(**table, reward_range=[0, 3], count=2) == []


def test_an_agentgym_server_keeps_to_the_contract(agentgym: str) -> None:
    table = {"name": agentgym, "invalid": [LEFT], "harmless": "look", "outcome": "sum"}
    assert failed(**table, reward_range=[0, 3], count=2) == []


def test_rewards_on_the_way_add_up_and_a_limit_is_no_end_of_the_task() -> None:
    suite = suite_of(**LAMP)
    lamp = first(suite)
    assert lamp.reset() == "This is lamp 0. Your task is to: press switches 1 to 3."
    results = [lamp.step(f"press {n}") for n in (1, 1, 2, 3)]
    assert [result.reward for result in results] == pytest.approx([1 / 3, 1 / 3, 2 / 3, 1])
    assert [result.terminated for result in results] == [False, False, False, True]
    with pytest.raises(EnvironmentFailureError, match="reset"):
        lamp.step("look")
    slow = first(suite)
    slow.reset()
    last = [slow.step("look") for _ in range(6)][-1]
    assert (last.terminated, last.truncated, last.ended) == (False, True, True)
    assert suite.environment.is_success(1.0, False)
    assert not suite.environment.is_success(2 / 3, True)


def test_ten_tenths_are_a_success() -> None:
    suite = suite_of(name=f"{HERE}Tenths")
    tenths = first(suite)
    tenths.reset()
    *_, last = [tenths.step("on") for _ in range(10)]
    assert last.terminated
    assert last.reward == 1.0  # 0.1 + 0.1 + … is 0.9999999999999999
    assert suite.environment.is_success(last.reward, True)


def test_rounding_is_no_failure() -> None:
    float32 = 0.8999999761581421 + 0.10000000149011612
    for table, won, lost in (({}, float32, 0.999), ({"success_reward": 0.5}, 0.49999998, 0.49)):
        is_success = suite_of(name=f"{HERE}Tenths", **table).environment.is_success
        assert is_success(won, True)
        assert not is_success(lost, True)


def test_the_last_reward_counts_where_the_table_says_so() -> None:
    lamp = first(suite_of(**LAMP | {"outcome": "last", "reward_range": [0, 1]}))
    lamp.reset()
    assert [lamp.step(action).reward for action in ("press 1", "look")] == [1.0, 0.0]


def test_tasks_of_a_file_are_the_arguments_of_reset(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"id": "a", "kind": "hall", "name": "the hall lamp"}, {"seed": 4}]
    tasks.write_text("\n".join(map(json.dumps, rows)))
    suite = suite_of(name=f"{HERE}GymLamp", tasks=str(tasks))
    assert [(task.id, task.kind) for task in suite.tasks] == [("a", "hall"), ("tasks:1", "task")]
    starts = [suite.make(task).reset().partition(".")[0] for task in suite.tasks]
    assert starts == ["This is the hall lamp", "This is lamp 4"]
    for text, message in (("[1]", "line 1 is no JSON object"), ("{", "line 1: .*write JSON")):
        tasks.write_text(text)
        with pytest.raises(ConfigError, match=message):
            suite_of(name=f"{HERE}GymLamp", tasks=str(tasks))
    with pytest.raises(ConfigError, match=r"tasks = .*/none: "):
        suite_of(name=f"{HERE}GymLamp", tasks=str(tmp_path / "none"))


def test_system_message_and_few_shot_turns_come_from_the_table_or_the_factory() -> None:
    assert suite_of(**LAMP).environment.chat.system == "Press switches."
    examples = [{"role": "user", "content": "dark"}, {"role": "assistant", "content": "press 1"}]
    chat = suite_of(**LAMP, system="Be brief.", examples=examples, reply="text").environment.chat
    assert chat.system == "Be brief."
    assert chat.examples == (Message("user", "dark"), Message("assistant", "press 1"))
    assert chat.actions_of(Message("assistant", " press 1 ")) == ("press 1",)


def test_an_environment_that_is_registered_with_gymnasium_is_found() -> None:
    gymnasium.register("qguide/Lamp-v0", entry_point=_wrapped)
    table = LAMP | {"name": "gymnasium:qguide/Lamp-v0"}
    lamp = first(suite_of(**table))
    assert "lamp 0" in lamp.reset()
    assert lamp.step("press 1").reward == pytest.approx(1 / 3)
    lamp.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gymnasium:qguide/Nowhere-v0", "'qguide/Nowhere-v0'; .*gymnasium:MODULE:ID"),
        ("gymnasium:no_such_module:Lamp-v0", "'no_such_module'; install"),
    ],
)
def test_what_gymnasium_does_not_know_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_environment(name)


def test_a_module_that_registers_an_environment_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lamp_shop.py").write_text(
        "import gymnasium\n"
        "class Bulb(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Text(9)\n"
        "    def reset(self, *, seed=None, options=None): ...\n"
        "    def step(self, action): ...\n"
        "gymnasium.register('qguide/Bulb-v0', entry_point='lamp_shop:Bulb')\n"
    )
    with pytest.raises(ConfigError, match=r"'qguide/Bulb-v0'; .*gymnasium:MODULE:ID"):
        find_environment("gymnasium:qguide/Bulb-v0")
    assert find_environment("gymnasium:lamp_shop:qguide/Bulb-v0")


def _wrapped(**_: Any) -> gymnasium.Env[str, str]:
    return _Wrapped()


class _Wrapped(gymnasium.Env[str, str]):
    """`GymLamp` as Gymnasium registers it."""

    observation_space = gymnasium.spaces.Text(200, charset=string.printable)
    action_space = observation_space

    def __init__(self) -> None:
        self._lamp = GymLamp()
        self.reset, self.step = self._lamp.reset, self._lamp.step  # type: ignore[method-assign]


def test_methods_are_tools_and_an_exception_is_a_result(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"prompt": "Buy cake.", "wanted": "cake", "budget": 6}))
    suite = suite_of(name=f"{HERE}Shop", tasks=str(tasks))
    names = [tool["function"]["name"] for tool in suite.environment.chat.tools]
    buy = suite.environment.chat.tools[0]["function"]["parameters"]
    assert names == ["buy", "look"]
    assert buy["required"] == ["item"]
    assert buy["properties"]["item"] == {"type": "string", "description": "Name of the item."}
    shop = first(suite)
    assert isinstance(shop, ToolEnvironment)
    assert shop.reset() == "Buy cake. You have 6 coins."
    dear = shop.call(ToolCall("buy", '{"item": "tea", "count": 9}'))
    assert (dear.observation, dear.valid) == ("{'error': '18 coins are too many'}", False)
    assert shop.call(ToolCall("buy", '{"item": "cake"}')).observation == "2 coins are left"
    wrong = [ToolCall("get_reward", "{}"), ToolCall("buy", "{"), ToolCall("buy", '{"colour": 1}')]
    assert not any(shop.call(call).valid for call in wrong)
    end = shop.step("I have bought it.")
    assert (end.reward, end.terminated) == (1.0, True)


def test_an_openenv_session_survives_what_it_does_not_understand(openenv: str) -> None:
    table = {"name": openenv, "reward_range": [0, 3]}
    lamp = first(suite_of(**table, action_field="command", observation_field="text"))
    assert "lamp 0" in lamp.reset()
    assert lamp.step("press 1").reward == pytest.approx(1 / 3)
    with pytest.raises(EnvironmentFailureError, match=r"boom \(EXECUTION_ERROR\)"):
        lamp.step("explode")
    assert lamp.step("press 2").reward == pytest.approx(2 / 3)
    lamp.close()
    other = first(suite_of(**table, action_field="order"))
    other.reset()
    refused = other.step("look")
    assert (refused.observation, refused.valid) == ("Invalid message", False)
    other.close()
    with pytest.raises(EnvironmentFailureError, match="set observation_field"):
        first(suite_of(**table, observation_field="picture")).reset()


def test_a_server_that_is_full_or_gone_fails_the_task() -> None:
    with serving_app(openenv_app(most_sessions=0), ws="websockets-sansio") as url:
        full = first(suite_of(name=f"openenv:{url}"))
        with pytest.raises(EnvironmentFailureError, match="CAPACITY_REACHED"):
            full.reset()
    with pytest.raises(EnvironmentFailureError, match=r"OpenEnv .* ws://127\.0\.0\.1:"):
        first(suite_of(name=f"openenv:{url}")).reset()
    gone = first(suite_of(name=f"agentgym:{url}"))
    with pytest.raises(EnvironmentFailureError, match=r"AgentGym .* http://127\.0\.0\.1:"):
        gone.reset()
    gone.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openenv:127.0.0.1", r"'openenv:127\.0\.0\.1' .*openenv:ws://HOST:PORT"),
        ("agentgym:ws://127.0.0.1", r"'agentgym:ws://127\.0\.0\.1' .*agentgym:http://HOST:PORT"),
        (f"{HERE}neither", "own_environments:neither' .*step .*reset; .*EnvironmentBundle"),
    ],
)
def test_what_is_no_environment_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_environment(name)


def test_a_tool_without_a_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def reset(self) -> None:
            pass

        def go(self, where: str) -> str:
            return where

    module = ModuleType("silent")
    module.__dict__["Silent"] = Silent
    monkeypatch.setitem(sys.modules, "silent", module)
    with pytest.raises(ConfigError, match=r"Silent\.go .*docstring"):
        find_environment("silent:Silent")


def test_a_name_is_short_for_a_table(tmp_path: Path) -> None:
    job = tmp_path / "explore.toml"
    job.write_text(f'environment = "{HERE}GymLamp"\noutput = "out"\n')
    config = load_config(ExploreConfig, job, ["environment.count=3"])
    assert config.environment == AdaptedConfig(name=f"{HERE}GymLamp", count=3)
    assert ExploreConfig.model_validate(config.model_dump(mode="json")) == config
    assert ExploreConfig.model_validate({"output": "out", "environment": f"{HERE}GymLamp"})
    with pytest.raises(ConfigError, match=r"  games: .*action_field, "):
        read_environment({"name": f"{HERE}GymLamp"}, ["games=there"])
    with pytest.raises(ValidationError, match=r"reward_range is \[1\.0, 1\.0\]; .*lower"):
        AdaptedConfig(name="x", reward_range=(1, 1))
