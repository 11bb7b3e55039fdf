"""The ipr job on corridors: an agent with one known mistake, and agents that wander."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import BatchPolicy, Candidate, History, Message, SampleRequest, Scorer, ScoreRequest, ScoreResult
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import EXPLORED, read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.corridor import Corridor, CorridorConfig
from qguide.training.exploration.contrast import Contrast
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.jobs.ipr import PROCESS, IprConfig, run_ipr
from qguide.training.rollouts.hosted import HostedModel
from qguide.training.trajectory import action_key, react_reply
from tests.support.corridors import THOUGHT, write_solutions
from tests.support.wanderer import Wanderer

SEED = 7
SOLUTION = Corridor.of_seed(SEED).solution()
MAX_STEPS = 8


def actions_of(history: History) -> list[str]:
    return [action_key(message.content) for message in history if message.role == "assistant"]


class Stumbler:
    """Solves the corridor, but looks around for ever once it has looked, which it does at a step.

    Attributes:
        rollouts: number of roll-outs that it has begun.
    """

    name = "stumbler"

    def __init__(self, stumbles_at: int | None = None, *, recovers: bool = False) -> None:
        self.rollouts = 0
        self._stumbles_at = stumbles_at
        self._recovers = recovers

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        done = actions_of(request.history)
        self.rollouts += request.n * (request.role == "rollout")
        right = [action for action in done if action != "look"]
        stumbles = len(done) == self._stumbles_at or ("look" in done and not self._recovers)
        action = "look" if stumbles else SOLUTION[len(right)]
        return [Candidate(Message("assistant", react_reply(THOUGHT, action)), 2)] * request.n


@pytest.fixture
def expert(tmp_path: Path) -> Path:
    return write_solutions(tmp_path, first_seed=SEED, count=6)


def configure(expert: Path, name: str = "ipr", *, count: int = 1, **changes: object) -> IprConfig:
    values: dict[str, object] = {
        "output": expert.parent / name,
        "expert": (expert,),
        "environment": CorridorConfig(first_seed=SEED, count=count),
        "rewards": StepRewards(rollouts=5, max_steps=MAX_STEPS),
        "parallel": 4,
    }
    return IprConfig.model_validate(values | changes)


def upstreams(**changes: object) -> dict[str, HostedModel]:
    """The upstreams "a" and "b" with the same model."""
    values = {"url": "http://127.0.0.1:1/v1", "model": "m"} | changes
    return {name: HostedModel.model_validate(values) for name in "ab"}


class RewardModel(Scorer):
    """Step rewards from a table of actions; notes what it was asked.

    Args:
        rewards: by the action that it values, without its thought.
    """

    name = "rewards"

    def __init__(self, rewards: dict[str, float], *, reads_observation: bool = False) -> None:
        self.asked: list[ScoreRequest] = []
        self.reads_observation = reads_observation
        self._rewards = rewards

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        self.asked += requests
        return [ScoreResult((self._rewards[action_key(request.candidates[0].content)],), 1) for request in requests]


def explore(
    config: IprConfig,
    policy: BatchPolicy,
    *,
    scorer: BatchPolicy | None = None,
    reward_model: RewardModel | None = None,
) -> dict[str, float]:
    return run_ipr(config, policy=policy, rollouts=scorer, q_model=reward_model, console=Console(file=StringIO()))


def pairs_of(config: IprConfig) -> list[PreferenceRow]:
    return list(read_rows(config.output / "rows.jsonl", PreferenceRow))


def explored_of(config: IprConfig) -> list[TreeRow]:
    rows = read_rows(config.output / EXPLORED, TreeRow)
    return sorted(rows, key=lambda row: row.task_id)


@pytest.mark.parametrize("mistake", range(1, len(SOLUTION)))
def test_one_mistake_is_one_pair_of_everything_after_it(expert: Path, mistake: int) -> None:
    config = configure(expert)
    figures = explore(config, Stumbler(mistake))
    whole, after = pairs_of(config)
    assert (after.level, after.source, after.depth) == ("suffix", "contrast", mistake)
    assert actions_of(after.history) == SOLUTION[:mistake]
    assert (after.chosen_value, after.rejected_value) == (1.0, 0.0)
    looks = ["look"] * (MAX_STEPS - mistake)
    for pair, chosen, rejected in (
        (after, SOLUTION[mistake:], looks),
        (whole, SOLUTION, [*SOLUTION[:mistake], *looks]),
    ):
        sides = [[row.to_message() for row in side] for side in (pair.chosen, pair.rejected)]
        assert [actions_of(tuple(side)) for side in sides] == [chosen, rejected]
        assert len(sides[0]) == 2 * len(chosen) - 1
    assert (whole.level, whole.depth, len(whole.messages)) == ("trajectory", 0, 1)
    assert (figures["suffix_pairs"], figures["trajectory_pairs"]) == (1, 1)
    assert (figures["deviations"], figures["own_outcome"]) == (1, 0.0)


def test_a_mistake_in_the_first_state_is_one_pair_and_not_two(expert: Path) -> None:
    config = configure(expert)
    figures = explore(config, Stumbler(0))
    [pair] = pairs_of(config)
    assert (pair.level, pair.depth) == ("trajectory", 0)
    # The step is compared all the same: its rewards are known to later iterations.
    assert (figures["deviations"], figures["compared"]) == (1, 1)


def mark_as_mistakes(expert: Path, *numbers: int) -> None:
    """Say that the expert erred on purpose in these actions of its first trajectory."""
    first = next(iter(read_trajectories(expert / "rows.jsonl")))
    marked = replace(first, mistakes=numbers).to_row()
    (expert / "rows.jsonl").write_text(f"{marked.model_dump_json()}\n")


def test_the_experts_deliberate_mistakes_are_marked_in_its_pairs(expert: Path) -> None:
    mark_as_mistakes(expert, 0, 2)
    config = configure(expert)
    explore(config, Stumbler(1))
    found = {pair.level: pair.mistakes for pair in pairs_of(config)}
    assert found == {"trajectory": (0, 2), "suffix": (1,)}


def test_an_agent_is_not_compared_with_a_deliberate_mistake(expert: Path) -> None:
    mark_as_mistakes(expert, 2)
    config = configure(expert)
    figures = explore(config, Stumbler(2))
    assert [pair.level for pair in pairs_of(config)] == ["trajectory"]
    assert (figures["deviations"], figures["rollouts"]) == (0, 0)


def test_an_expert_of_mistakes_alone_is_no_example(expert: Path) -> None:
    mark_as_mistakes(expert, *range(len(SOLUTION)))
    config = configure(expert)
    explore(config, Stumbler(1))
    assert pairs_of(config) == []


def test_an_episode_along_the_expert_is_not_played_again(expert: Path) -> None:
    figures = explore(configure(expert), Stumbler(3))
    # From the start; after the mistake at step 4, from the expert's state there.
    assert figures["episodes"] == 2
    # After the expert's action and after the agent's own.
    assert figures["rollouts"] == 2 * 5


def test_no_action_is_worse_by_more_than_one(expert: Path) -> None:
    config = configure(expert, contrast=Contrast(tau=1.0))
    explore(config, Stumbler(2))
    assert [pair.level for pair in pairs_of(config)] == ["trajectory"]


@pytest.mark.parametrize(("own_reward", "levels"), [(0.2, {"trajectory", "suffix"}), (0.6, {"trajectory"})])
def test_a_reward_model_stands_in_for_the_roll_outs(expert: Path, own_reward: float, levels: set[str]) -> None:
    config = configure(expert)
    model = RewardModel({SOLUTION[1]: 0.9, "look": own_reward})
    figures = explore(config, Stumbler(1), reward_model=model)
    assert figures["rollouts"] == 0
    assert (figures["expert_reward"], figures["own_reward"]) == (0.9, own_reward)
    assert {pair.level for pair in pairs_of(config)} == levels
    assert [actions_of(request.history) for request in model.asked] == [SOLUTION[:1]] * 2
    assert not any(request.observations for request in model.asked)


def test_a_reward_model_may_read_what_the_action_was_answered(expert: Path) -> None:
    model = RewardModel({SOLUTION[1]: 0.9, "look": 0.2}, reads_observation=True)
    explore(configure(expert), Stumbler(1), reward_model=model)
    assert all(request.observations[0][0].role == "user" for request in model.asked)


def test_the_experts_last_step_has_its_outcome_from_no_model(expert: Path) -> None:
    last = len(SOLUTION) - 1
    model = RewardModel({"look": 0.2})
    figures = explore(configure(expert), Stumbler(last), reward_model=model)
    assert (figures["expert_reward"], figures["own_reward"]) == (1.0, 0.2)


def test_an_episode_that_the_limit_ends_has_its_outcome_from_no_model(expert: Path) -> None:
    limit = StepRewards(rollouts=5, max_steps=len(SOLUTION))
    model = RewardModel({})
    agent = Stumbler(len(SOLUTION) - 1)
    figures = explore(configure(expert, rewards=limit), agent, reward_model=model)
    assert not model.asked
    assert (figures["expert_reward"], figures["own_reward"]) == (1.0, 0.0)


def test_a_task_is_a_tree_of_the_experts_path_and_the_agents(expert: Path) -> None:
    config = configure(expert)
    explore(config, Stumbler(1))
    [row] = explored_of(config)
    own = [action_key(node.action) for node in row.nodes if node.taken]
    assert own == [SOLUTION[0], *["look"] * (MAX_STEPS - 1)]
    assert {node.source for node in row.nodes} == {"expert", "stumbler"}
    assert [node.id for node in row.nodes if node.parent == 1] == [2, len(SOLUTION) + 1]
    known = {n: reward for n, reward in enumerate(row.values[PROCESS], 1) if reward is not None}
    assert known == {2: 1.0, len(SOLUTION) + 1: 0.0}


def test_an_agent_like_the_expert_gives_no_pair(expert: Path) -> None:
    config = configure(expert)
    figures = explore(config, Stumbler())
    assert pairs_of(config) == []
    assert (figures["deviations"], figures["rollouts"], figures["own_outcome"]) == (0, 0, 1.0)


def test_a_mistake_that_the_scorer_makes_good_gives_no_suffix(expert: Path) -> None:
    config = configure(expert)
    scorer = Stumbler(recovers=True)
    figures = explore(config, Stumbler(1), scorer=scorer)
    assert [pair.level for pair in pairs_of(config)] == ["trajectory"]
    assert (figures["expert_reward"], figures["own_reward"]) == (1.0, 1.0)
    assert scorer.rollouts > 0


def test_a_mistake_that_the_agent_makes_good_is_not_compared(expert: Path) -> None:
    config = configure(expert)
    figures = explore(config, Stumbler(1, recovers=True))
    assert pairs_of(config) == []
    assert (figures["deviations"], figures["compared"]) == (1, 0)


def test_step_rewards_of_the_expert_are_kept_over_iterations(expert: Path) -> None:
    first = configure(expert, "1")
    explore(first, Stumbler(2), scorer=Stumbler(4))
    second = configure(expert, "2", earlier=(first.output,))
    figures = explore(second, Stumbler(2), scorer=Stumbler())
    # The scorer of the second run would have won after the expert's step, but is not asked.
    [row] = explored_of(second)
    steps = slice(len(SOLUTION))
    assert row.values[PROCESS][steps] == explored_of(first)[0].values[PROCESS][steps]
    assert figures["rollouts"] == 5
    other = configure(expert, "3", earlier=(first.output,), rewards=StepRewards(rollouts=2))
    with pytest.raises(ConfigError, match=r"^rewards was {'rollouts': 5, .*'rollouts': 2, .*earlier$"):
        explore(other, Stumbler(2))


@pytest.mark.parametrize(
    ("scorer", "changes", "message"),
    [
        ("upstream:b", {}, "^scorer was 'upstream:a' .*'upstream:b';"),
        ("upstream:a", {"model": "n"}, "scorer's model was 'm' in .* and is 'n'"),
        ("upstream:a", {"instructions": "Hurry."}, "scorer's instructions was ''"),
        ("upstream:a", {"parameters": {"top_p": 0.5}}, r"^scorer's parameters .*{} .*{'top_p': 0\.5};"),
        ("upstream:a", {"omit": ("seed",)}, r"^scorer's omit .*\[\] .*\['seed'\];"),
        ("", {}, "^scorer was 'upstream:a' .*None;"),
    ],
)
def test_step_rewards_of_another_hosted_scorer_are_refused(
    expert: Path, scorer: str, changes: dict[str, object], message: str
) -> None:
    first = configure(expert, "1", scorer="upstream:a", upstreams=upstreams())
    explore(first, Stumbler(2), scorer=Stumbler(4))
    second = configure(expert, "2", earlier=(first.output,), scorer=scorer, upstreams=upstreams(**changes))
    with pytest.raises(ConfigError, match=message):
        explore(second, Stumbler(2), scorer=Stumbler(4))


def test_a_hosted_scorer_stays_the_same_on_another_server(expert: Path) -> None:
    first = configure(expert, "1", scorer="upstream:a", upstreams=upstreams())
    explore(first, Stumbler(2), scorer=Stumbler(4))
    moved = upstreams(url="http://other/v1", max_in_flight=3)
    second = configure(expert, "2", earlier=(first.output,), scorer="upstream:a", upstreams=moved)
    assert explore(second, Stumbler(2), scorer=Stumbler(4))["rollouts"] == 5


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"config\.json; .*`qguide ipr`"), ("{", r"config\.json .*JSON \(.*line 1 column 2")]
)
def test_an_earlier_folder_that_is_no_run_is_refused(
    expert: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    folder = tmp_path / "no-run"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        explore(configure(expert, earlier=(folder,)), Stumbler(2))


def test_tasks_without_a_trajectory_are_not_played(expert: Path) -> None:
    config = configure(expert, count=9)
    figures = explore(config, Wanderer([THOUGHT]))
    assert figures["tasks"] == 6
    others = CorridorConfig(first_seed=100, count=3)
    elsewhere = configure(expert, "elsewhere", environment=others)
    with pytest.raises(ConfigError, match=r"3 tasks .*expert = .*\[environment\]"):
        explore(elsewhere, Wanderer([THOUGHT]))


def test_an_expert_of_another_game_is_refused(expert: Path) -> None:
    rows = expert / "rows.jsonl"
    rows.write_text(rows.read_text().replace("You pick up the key.", "You find a coin."))
    with pytest.raises(EnvironmentFailureError, match=r"1 tasks .* corridor:7: .* 2 actions"):
        explore(configure(expert), Stumbler(3))


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_killed_run_goes_on_to_the_same_rows(expert: Path, parallel: int) -> None:
    whole = configure(expert, "whole", count=6)
    killed = configure(expert, "killed", count=6, parallel=parallel)
    explore(whole, Wanderer([THOUGHT]))
    with pytest.raises(KeyboardInterrupt):
        explore(killed, Wanderer([THOUGHT], dies_after=40))
    assert not (killed.output / "rows.jsonl").exists()
    explore(killed, Wanderer([THOUGHT]))
    assert explored_of(killed) == explored_of(whole)
    assert pairs_of(killed) == pairs_of(whole) != []


def test_another_seed_draws_differently(expert: Path) -> None:
    one, other = configure(expert, "0", count=6), configure(expert, "1", count=6, seed=1)
    explore(one, Wanderer([THOUGHT]))
    explore(other, Wanderer([THOUGHT]))
    assert pairs_of(one) != pairs_of(other)
