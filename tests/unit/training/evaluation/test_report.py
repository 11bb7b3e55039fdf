"""The report of an evaluation: tables that a terminal of 80 columns shows whole, and colours."""

from io import StringIO

from rich.console import Console

from qguide.training.evaluation.records import DETERMINISTIC, METHODS, EpisodeRow, MethodName, Results
from qguide.training.evaluation.report import colour_of, print_results
from qguide.training.evaluation.results import compare, latest, method_rows, summarise

KINDS = ("pick_and_place_simple", "pick_two_obj_and_place", "look_at_obj_in_light")


def episode(method: MethodName, task: int, reward: float) -> EpisodeRow:
    return EpisodeRow(
        method=method,
        seed=None if method in DETERMINISTIC else 0,
        task_id=f"task:{task}",
        kind=KINDS[task % len(KINDS)],
        reward=reward,
        success=reward >= 1.0,
        terminated=True,
        too_long=False,
        steps=40,
        decisions=40,
        distinct_candidates=200,
        invalid_actions=40,
        completion_tokens=1_234_567,
        scored_tokens=3,
        wall_time_s=12_345.0,
        policy_time_s=0.3,
        scorer_time_s=0.1,
        environment_time_s=0.1,
        actions=("a",) * 40,
    )


def printed(*rewards: float) -> str:
    """The part of every method that a terminal of 80 columns shows, one reward for each task."""
    rows = [episode(m, task, reward) for m in METHODS for task, reward in enumerate(rewards)]
    played = latest(rows)
    results = Results(
        complete=True,
        tasks=len(rewards),
        kinds=dict.fromkeys(KINDS, 1),
        rows=tuple(method_rows(played, [0])),
        summary=tuple(summarise(played, [0])),
        comparisons=tuple(compare(played, [0])),
        failures=(),
        wall_clock_s=1.0,
        config={},
        versions={},
        notes={},
    )
    shown = StringIO()
    print_results(results, Console(file=shown, width=80))
    return shown.getvalue()


def test_no_name_and_no_figure_is_cut_at_80_columns() -> None:
    text = printed(1.0, 0.0, 1.0)
    assert "…" not in text
    for name in ("success", "95 % (tasks)", "reward", "tokens each", "distinct", "invalid"):
        assert name in text
    for name in ("too long", "s each", *KINDS, *METHODS):
        assert name in text
    assert "1,234,567" in text
    assert "12345.00" in text


def heading(text: str) -> list[str]:
    """Names of the first table's columns."""
    return [cell.strip() for cell in text.splitlines()[2].strip("┃ ").split("┃")]


def test_the_reward_comes_first_where_rewards_are_graded() -> None:
    interval = "95 % (tasks)"
    graded, plain = printed(0.25, 0.5, 0.75), printed(1.0, 0.0, 1.0)
    assert heading(graded) == ["method", "reward", interval, "success", interval]
    assert heading(plain) == ["method", "success", interval, "reward", interval]
    [row, *_] = [line for line in graded.splitlines() if "q-guided " in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")][1:4] == ["0.500", "0.250 to 0.750", "0.0%"]


def test_every_method_has_its_difference_from_the_first_baseline() -> None:
    _, table = printed(1.0, 0.0, 1.0).split("mean reward less that of greedy, paired by task and seed")
    shown = [line.strip("│ ").split(" ")[0] for line in table.splitlines() if line.startswith("│")]
    assert set(shown) == set(METHODS) - {"greedy"}


def test_methods_have_distinct_colours() -> None:
    methods = (*METHODS, "my_methods:shortest", "my_methods:longest")
    assert len({colour_of(method) for method in methods}) == len(methods)
