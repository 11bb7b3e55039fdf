"""The label job: from trees to trees with labels."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.jobs.label import LabelConfig, run_label
from tests.support.documents import blocks_of
from tests.support.labels import paths_of

GOLDEN = Path(__file__).parents[3] / "data" / "trees"


def golden_tree(name: str) -> TreeRow:
    return TreeRow.model_validate(json.loads((GOLDEN / f"{name}.json").read_text())["tree"])


def write_trees(folder: Path, *rows: TreeRow) -> Path:
    with JsonlWriter(folder / "rows.jsonl") as writer:
        for row in rows:
            writer.write(row)
    return folder


Labels = list[tuple[float | None, ...]]


def labels_in(config: LabelConfig) -> Labels:
    """The labels of each path of the only tree."""
    [row] = read_rows(config.output / "rows.jsonl", TreeRow)
    return [path.q_values for path in paths_of(row)]


def label(config: LabelConfig) -> Labels:
    run_label(config)
    return labels_in(config)


def test_each_node_is_labelled_once_in_the_first_path_through_it(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    rows = label(LabelConfig(trees=(trees,), output=tmp_path / "labels"))
    assert rows == [(0.9, 1.0), (None, 0.9, 1.0), (0.0,)]
    [row] = read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow)
    assert row.nodes == golden_tree("two_ways_home").nodes
    assert row.values == {"q": (0.9, 1.0, 0.9, 1.0, 0.0)}


def searched(name: str, values: list[float | None]) -> TreeRow:
    visits = tuple(None if value is None else 1.0 for value in values)
    columns = {"visits": visits, "mcts": tuple(values)}
    return golden_tree(name).model_copy(update={"values": columns})


def test_the_values_of_a_search_are_labels_and_unvisited_nodes_have_none(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", searched("two_ways_home", [0.6, None, 0.5, 1.0, -1.0]))
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels", target="mcts")
    assert label(config) == [(0.6, None), (None, 0.5, 1.0), (-1.0,)]
    again = config.model_copy(update={"target": "q", "output": tmp_path / "q"})
    assert label(again)[0] == (0.9, 1.0)


OWN = """
def surprise(tree):
    return {node.id: node.depth / 4 for node in tree.nodes if node.step.valid}

def beyond(tree):
    return {len(tree.nodes) + 1: 0.0}

def nothing(tree):
    return {}

def words(tree):
    return {1: "good"}
"""


def test_a_target_may_be_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_labels.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels", target="own_labels:surprise")
    assert label(config) == [(0.25, 0.5), (None, 0.5, 0.75), (0.25,)]
    [row] = read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow)
    assert [*row.values] == ["own_labels:surprise"]
    for name, said in (
        ("none", "no attribute 'none'"),
        ("beyond", "nodes are 1 to 5"),
        ("nothing", "labels no node of .*trees; choose"),
        ("words", "could not convert string to float"),
    ):
        wrong = config.model_copy(update={"target": f"own_labels:{name}", "output": tmp_path / name})
        with pytest.raises(ConfigError, match=said):
            run_label(wrong)


def test_the_target_of_the_documentation_tells_actions_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [written] = [b.text for b in blocks_of("docs/methods/index.md") if "def spare_steps" in b.text]
    (tmp_path / "documented_labels.py").write_text(written)
    monkeypatch.syspath_prepend(str(tmp_path))
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    target = "documented_labels:spare_steps"
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels", target=target)
    assert label(config) == [(0.975, 1.0), (None, 0.975, 1.0), (0.0,)]
    monkeypatch.delitem(sys.modules, "documented_labels")


class Sees:
    """Fixed values of the golden actions, or of what they were answered."""

    name = "sees"

    def __init__(self, *, reads_observation: bool = False, ranks: bool = False) -> None:
        self.reads_observation = reads_observation
        self.ranks = ranks

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(self._q(request)), 1) for request in requests]

    def _q(self, request: ScoreRequest) -> Iterator[float]:
        for number, candidate in enumerate(request.candidates):
            if self.reads_observation:
                yield 0.9 if request.observations[number][0].content == "two" else 0.1
            else:
                yield {"a": 0.5, "b": 0.8, "c": 0.4, "d": 0.9, "e": 0.2}[candidate.content[-1]]


def bootstrapped(trees: Path, output: Path, **changes: object) -> LabelConfig:
    values = {"trees": [trees], "output": output, "target": "td", "qnet": "any"}
    return LabelConfig.model_validate(values | {"gamma": 0.9, "gae_lambda": 0.5} | changes)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("td", [(0.687375, 1.0), (None, 0.855, 1.0), (0.0,)]), ("gae", [(0.287375, 0.4), (None, 0.255, 0.1), (-0.4,)])],
)
def test_labels_are_made_of_a_models_values(
    tmp_path: Path, target: str, expected: list[tuple[float | None, ...]]
) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    config = bootstrapped(trees, tmp_path / "labels", target=target)
    run_label(config, scorer=Sees())
    for found, labels in zip(labels_in(config), expected, strict=True):
        assert found == tuple(q if q is None else pytest.approx(q) for q in labels)


def test_a_model_may_value_the_states_that_actions_led_to(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    config = bootstrapped(trees, tmp_path / "labels", gae_lambda=0.0)
    run_label(config, scorer=Sees(reads_observation=True))
    # The state after node 3 is "two"; its sibling, node 2, and node 4 were answered "won".
    values = (pytest.approx(0.9 * 0.5), 1.0)
    assert labels_in(config) == [values, (None, pytest.approx(0.09), 1.0), (0.0,)]


def test_ranks_and_unknown_observations_are_no_values(tmp_path: Path) -> None:
    tree = golden_tree("two_ways_home")
    trees = write_trees(tmp_path / "trees", tree)
    with pytest.raises(ConfigError, match=r"^sees .*qnet$"):
        run_label(bootstrapped(trees, tmp_path / "ranks"), scorer=Sees(ranks=True))
    last = tree.nodes[-1].model_copy(update={"observation": ""})
    unseen = tree.model_copy(update={"nodes": (*tree.nodes[:-1], last)})
    trees = write_trees(tmp_path / "unseen", unseen)
    with pytest.raises(ConfigError, match=r"task two-ways, node 5: .*sees"):
        run_label(bootstrapped(trees, tmp_path / "no"), scorer=Sees(reads_observation=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qnet": ""}, r"gae_lambda is 0\.5, .*qnet .*gae_lambda to 1"),
        ({"target": "avg"}, "qnet is 'any', .*'avg' .*qnet to '', .*'td' or 'gae'"),
    ],
)
def test_a_model_is_named_where_its_values_are_read(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        bootstrapped(tmp_path, tmp_path / "labels", **changes)


def test_values_of_a_search_are_not_made_up(tmp_path: Path) -> None:
    plain = write_trees(tmp_path / "plain", golden_tree("two_ways_home"))
    one = searched("two_ways_home", [0.5] * 5)
    twice = write_trees(tmp_path / "twice", one, one.model_copy(update={"draws": one.draws + 1}))
    for number, trees in enumerate((plain, twice)):
        config = LabelConfig(trees=(trees,), output=tmp_path / str(number), target="mcts")
        with pytest.raises(ConfigError, match=r"two-ways .*strategy = 'mcts'"):
            run_label(config)


@pytest.mark.parametrize("target", ["avg", "reward", "progress"])
def test_other_targets_need_no_discount(tmp_path: Path, target: str) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("partial_rewards"))
    config = LabelConfig.model_validate({"trees": [trees], "output": tmp_path / "labels", "target": target})
    golden = json.loads((GOLDEN / "partial_rewards.json").read_text())[target]
    run_label(config)
    [row] = read_rows(config.output / "rows.jsonl", TreeRow)
    labels = {str(number): q for number, q in enumerate(row.values[target], start=1)}
    assert labels == pytest.approx(golden)


def test_trees_of_the_same_task_become_one(tmp_path: Path) -> None:
    tree = golden_tree("two_ways_home")
    pruned = tree.model_copy(update={"nodes": tree.nodes[:2]})
    first = write_trees(tmp_path / "first", pruned)
    second = write_trees(tmp_path / "second", tree)
    together = label(LabelConfig(trees=(first, second), output=tmp_path / "together"))
    alone = label(LabelConfig(trees=(second,), output=tmp_path / "alone"))
    assert together == alone


def test_a_row_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    tree = golden_tree("partial_rewards")
    trees = write_trees(tmp_path / "trees", tree, tree)
    with pytest.raises(RecordError, match=f"task {tree.task_id}: .*twice"):
        run_label(LabelConfig(trees=(trees,), output=tmp_path / "out"))
    once = write_trees(tmp_path / "once", tree)
    with pytest.raises(ConfigError, match=r"trees .*once .*once/rows\.jsonl,"):
        run_label(LabelConfig(trees=(once, once / "rows.jsonl"), output=tmp_path / "out"))


def test_equal_episodes_and_equal_explorations_of_two_runs_are_no_mistake(tmp_path: Path) -> None:
    tree = golden_tree("partial_rewards")
    episode = tree.model_copy(update={"draws": 1})
    trees = (
        write_trees(tmp_path / "served", episode, episode),
        write_trees(tmp_path / "one", tree),
        write_trees(tmp_path / "other", tree),
    )
    again = label(LabelConfig(trees=trees, output=tmp_path / "out"))
    once = LabelConfig(trees=(tmp_path / "one",), output=tmp_path / "out-of-one")
    assert again == label(once)


def test_a_killed_run_starts_over_and_comes_out_the_same(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"))
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels")
    rows = label(config)
    (tmp_path / "labels" / "rows.jsonl").unlink()
    (tmp_path / "labels" / "rows.partial").write_text('{"task_id": "half a ro')
    assert label(config) == rows
    assert not (tmp_path / "labels" / "rows.partial").exists()


def test_the_statistics_say_what_a_choice_can_use(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", golden_tree("two_ways_home"), golden_tree("one_step_success"))
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels")
    summary = run_label(config)
    assert summary["tasks"] == 2
    assert summary["labels"] == 7
    assert summary["sibling_groups"] == 3
    assert summary["tied_sibling_groups"] == 1
    assert summary["sibling_spread_mean"] == pytest.approx((0.9 + 0.1 + 0.0) / 3)
    written = json.loads((tmp_path / "labels" / "metrics.jsonl").read_text())
    assert written["histogram"] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 6]


def rewarded(reward: float) -> TreeRow:
    tree = golden_tree("one_step_success")
    node = tree.nodes[0].model_copy(update={"reward": reward})
    return tree.model_copy(update={"nodes": (node, *tree.nodes[1:])})


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (100.5, r"node 1: .* 100\.5, .* -100 to 100 .*min_reward .*max_reward"),
        (1e308, r"line 1: nodes\.0\.reward: .* 1000000;"),
        (-1e308, r"line 1: nodes\.0\.reward: .* -1000000;"),
        (float("inf"), r"line 1: nodes\.0\.reward: .*number;"),
        (float("nan"), r"line 1: nodes\.0\.reward: .*number;"),
    ],
)
def test_a_reward_out_of_bounds_is_refused(tmp_path: Path, reward: float, said: str) -> None:
    trees = write_trees(tmp_path / "trees", rewarded(reward))
    with pytest.raises(RecordError, match=said):
        run_label(LabelConfig(trees=(trees,), output=tmp_path / "labels"))


def test_the_greatest_rewards_of_all_still_give_finite_statistics(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", rewarded(1e6))
    config = LabelConfig(trees=(trees,), output=tmp_path / "labels", max_reward=1e6)
    assert run_label(config)["label_std"] >= 0  # type: ignore[operator]


def test_trees_without_actions_are_nothing_to_label(tmp_path: Path) -> None:
    empty = golden_tree("two_ways_home").model_copy(update={"nodes": ()})
    trees = write_trees(tmp_path / "trees", empty)
    with pytest.raises(ConfigError, match="qguide explore"):
        run_label(LabelConfig(trees=(trees,), output=tmp_path / "labels"))
