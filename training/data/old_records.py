"""Records as they were written before all of them were trees with columns; the only such reader.

    SearchRow            visit_counts, values ─▶ the columns `visits` and `mcts`
    TreeRow              judged               ─▶ nodes that nobody tried, and a column of each judge
    DecisionGroupsRow    decisions            ─▶ the path taken, with its other candidates beside it
    TrajectoryRow        messages             ─▶ a tree of one path

The rows of `qguide label` are not converted: the job takes seconds, and is run again.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import JUDGED, DrawnRow, MessageRow, TreeRow, messages_of
from qguide.training.data.parquet import PARQUET
from qguide.training.data.records import drawn_from_rows
from qguide.training.data.row_files import address_of, regular, whole_lines
from qguide.training.data.runs import EXPLORED, JsonlWriter, RunFolder
from qguide.training.data.trajectories import Trajectory

_SERVED: Final = "served"
"""The `environment` of an episode that a server recorded, whose outcome says whether it ended."""
_AGENT: Final = "agent"
"""The `source` of an action that no policy of the server drew, as the server writes it."""


def record_files(source: Path) -> list[Path]:
    """The file itself, a run's trees, or those that a server recorded in a folder."""
    if address_of(source) or source.suffix == PARQUET:
        raise ConfigError(
            f"{address_of(source) or source} is parquet or lies elsewhere, and only lines on this "
            "machine are converted; convert the run that it is of, and export that again"
        )
    if not source.exists():
        raise ConfigError(f"{source} does not exist; name a file or a folder of trees")
    if not source.is_dir():
        return [regular(source)]
    for rows in (source / EXPLORED, RunFolder(source).rows):
        if rows.is_file():
            return [rows]
    if not (trees := sorted(source.glob("trees-*.jsonl"))):
        raise ConfigError(f"{source} holds no rows.jsonl and no trees-*.jsonl; name another folder")
    return trees


def convert_file(path: Path) -> int:
    """Rewrite the trees of a file, and keep the old one as `*.v1`; returns how many it changed."""
    unfinished = path.with_name(f"{path.name}.partial")
    unfinished.unlink(missing_ok=True)
    try:
        size = path.stat().st_size
        changed = _write_converted(path, unfinished)
        if changed:
            shutil.copymode(path, unfinished)
            if path.stat().st_size != size:
                raise RecordError(
                    f"{path} grew while it was converted, and is left as it was; stop the server "
                    "that writes it, and run the command again"
                )
            _keep_old(path)
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return changed


def _write_converted(path: Path, unfinished: Path) -> int:
    changed = 0
    lines = whole_lines(path, warns=True)
    unfinished.touch(mode=0o600)  # it holds users' texts before it has the old file's mode
    with JsonlWriter(unfinished, flushes=False) as writer:
        for number, line in lines:
            try:
                row = json.loads(line)
                if not row.keys() & {"nodes", "decisions", "outcome_reward"}:
                    raise RecordError(
                        f"{path}, line {number} holds no tree, and only trees are converted; "
                        "labels are made again by `qguide label`, and explorations of `ipr` by "
                        "that job in another folder"
                    )
                changed += row.get("version") == 1
                tree = TreeRow.model_validate(_converted(row))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise RecordError(f"{path}, line {number} holds no tree of version 1 or 2: {_flaw(error)}") from error
            writer.write(tree)
    return changed


def _flaw(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"it is of another shape ({type(error).__name__})"
    first = error.errors(include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the row'}: {first['msg']}"


def _keep_old(path: Path) -> None:
    """Link the old file to `*.v1`, so that a kill before it is replaced leaves it in its place."""
    old = path.with_name(f"{path.name}.v1")
    if old.exists() and not old.samefile(path):
        raise RecordError(f"{old} is there already, of another conversion; move it elsewhere")
    if not old.exists():
        old.hardlink_to(path)


def _converted(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("version") != 1:
        return row
    if "outcome_reward" in row:
        return _tree_of_trajectory(row)
    return _tree_of_groups(row) if "decisions" in row else _tree_with_columns(row)


def _tree_of_trajectory(row: dict[str, Any]) -> dict[str, Any]:
    messages = messages_of(MessageRow.model_validate(said) for said in row["messages"])
    drawn = [[DrawnRow.model_validate(one) for one in before] for before in row.get("drawn", ())]
    trajectory = Trajectory(
        messages=messages,
        reward=row["outcome_reward"],
        task_id=row["task_id"],
        terminated=_stated_end(row["terminated"]),
        mistakes=tuple(row.get("mistakes", ())),
        source=row["source"],
        environment=row["environment"],
        kind=row["kind"],
        drawn=tuple(map(drawn_from_rows, drawn)),
        earned=tuple(row.get("rewards", ())),
    )
    tokens = row.get("completion_tokens", 0)
    return trajectory.to_row(completion_tokens=tokens).model_dump(mode="json")


def _tree_of_groups(row: dict[str, Any]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    parent = 0
    for depth, decision in enumerate(row.pop("decisions"), start=1):
        first, chosen = len(nodes) + 1, decision["chosen"]
        for index, candidate in enumerate(decision["candidates"]):
            place = {"id": first + index, "parent": parent, "depth": depth}
            marks = {"taken": index == chosen, "greedy": index == decision.get("greedy")}
            played = {"rollouts": candidate.pop("continuations"), "source": row["source"]}
            nodes.append(candidate | place | marks | played)
        parent = first + chosen
    for name in ("source", "continuation", "seed"):  # the run's config.json says them
        row.pop(name)
    rollouts = row.pop("start", ())
    return row | {"version": 2, "nodes": nodes, "draws": 1, "rollouts": rollouts}


def _stated_end(terminated: bool) -> bool | None:
    """The end that an old row states: `import` wrote true of recordings that did not say so, too."""
    return None if terminated else False


def _tree_with_columns(row: dict[str, Any]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = list(row["nodes"])
    if row["environment"] != _SERVED:
        nodes = [node | {"terminated": _stated_end(node.get("terminated", False))} for node in nodes]
    columns: dict[str, dict[int, float]] = {}
    ids = {(node["parent"], node["action"]): node["id"] for node in nodes}
    for judged in row.pop("judged", ()):
        place = judged["parent"], judged["action"]
        if place not in ids:
            ids[place] = len(nodes) + 1
            depth = 1 + (nodes[place[0] - 1]["depth"] if place[0] else 0)
            said = {name: judged[name] for name in ("parent", "action", "reply") if name in judged}
            unknown = {"observation": "", "tried": False, "source": _AGENT}
            nodes.append({"id": ids[place], "depth": depth, **said, **unknown})
        columns.setdefault(JUDGED + judged["judge"], {})[ids[place]] = judged["q_value"]
    values = {name: [own.get(node["id"]) for node in nodes] for name, own in columns.items()}
    if counts := row.pop("visit_counts", ()):
        values |= {"visits": [count or None for count in counts], "mcts": row["values"]}
    return row | {"version": 2, "nodes": nodes, "values": values}
