"""The reward is the benchmark's: checked on results by hand, and against recorded rewards."""

import ast
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qguide.training.environments.intercode_sql.episode import execution_reward, record_overlap

Rule = Callable[[Sequence[object], Sequence[object]], float]


def test_equal_results_have_the_full_reward() -> None:
    assert execution_reward([("a",), ("b",)], [("a",), ("b",)]) == 1
    assert execution_reward([], []) == 1
    assert execution_reward([(1, None)], [(1, None)]) == 1


def test_an_error_earns_nothing() -> None:
    assert execution_reward(None, [(1,)]) == 0
    assert execution_reward([(1,)], None) == 0


def test_records_that_are_not_common_lower_it() -> None:
    assert execution_reward([("a",), ("b",)], [("a",)]) == 0.5
    assert execution_reward([("a",), ("a",)], [("a",)]) == 0.5
    assert execution_reward([("a",)], [("b",)]) == 0
    assert execution_reward([(1,)], [("1",)]) == 0


def test_the_order_of_the_common_records_counts() -> None:
    ascending, descending = [("a",), ("b",), ("c",)], [("c",), ("b",), ("a",)]
    assert execution_reward(descending, descending) == 1
    assert execution_reward(ascending, descending) == -1
    assert execution_reward([("a",), ("c",), ("b",)], ascending) == 0.33


def test_a_constant_result_has_no_order() -> None:
    assert execution_reward([("a",), ("a",)], [("a",), ("a",), ("a",)]) == pytest.approx(2 / 3)


def test_recorded_rewards_are_computed_again(recorded_sql_episodes: Path) -> None:
    """The result of a run that earned 1 is right, and so determines the rewards of all others.

    Most of the recorded runs were rewarded before order counted: there the IoU alone is right.
    """
    shown = list(_submissions(recorded_sql_episodes))
    gold: dict[int, list[list[Any]]] = defaultdict(list)
    for task, records, reward in shown:
        if reward == 1 and records not in gold[task]:
            gold[task].append(records)
    known = [(records, gold[task], reward) for task, records, reward in shown if gold[task]]
    ours = [_agree(execution_reward, *case) for case in known]
    either = [_agree(record_overlap, *case) or same for case, same in zip(known, ours, strict=True)]
    assert len(known) >= 3_500
    assert sum(ours) / len(ours) >= 0.98
    assert sum(either) / len(either) >= 0.997


def _agree(rule: Rule, records: list[Any], gold: list[list[Any]], reward: float) -> bool:
    return any(abs(rule(records, right) - reward) < 0.006 for right in gold)


def _submissions(path: Path) -> Iterator[tuple[int, list[Any], float]]:
    """Distinct SELECTs that ran: the task, the records that were shown, and the reward."""
    seen = set()
    for line in lzma.decompress(path.read_bytes()).splitlines():
        episode = json.loads(line)
        for turn in episode["turns"]:
            key = episode["task_id"], turn["action"]
            if _is_select(turn) and "react" not in episode["run"] and key not in seen:
                seen.add(key)
                yield episode["task_id"], _records(turn["observation"]), turn["reward"]


def _is_select(turn: dict[str, Any]) -> bool:
    return bool(turn["valid"]) and turn["action"].lstrip().lower().startswith("select")


def _records(shown: str) -> list[Any]:
    """Records as they were printed; decimals and dates stay what they are, as text."""
    plain = re.sub(r"(?:Decimal|datetime\.\w+)\([^)]*\)", lambda call: repr(call.group()), shown)
    records: list[Any] = ast.literal_eval(plain)
    return records
