"""Trees as they were written before their values were named columns; the only such reader.

    SearchRow    visit_counts, values ─▶ the columns `visits` and `mcts`
    TreeRow      judged               ─▶ nodes that nobody tried, and a column of each judge

The rows of `qguide label` are not converted: the job takes seconds, and is run again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qguide.qnet.errors import RecordError
from qguide.qnet.records import JUDGED, TreeRow
from qguide.training.data.runs import RunFolder, regular, rows_at_once


def tree_files(source: Path) -> Iterator[Path]:
    """The file itself, a run's rows, or the trees that a server recorded in a folder."""
    if not source.is_dir():
        yield regular(source)
    elif (rows := RunFolder(source).rows).is_file():
        yield rows
    else:
        yield from sorted(source.glob("trees-*.jsonl"))


def convert_file(path: Path) -> int:
    """Rewrite the trees of a file, and keep the old one as `*.v1`; returns how many it changed."""
    changed = 0
    try:
        with (
            path.open("rb") as lines,
            rows_at_once(path.with_suffix(".converted")) as writer,
        ):
            for line in lines:
                row = json.loads(line)
                changed += row.get("version") == 1
                writer.write(TreeRow.model_validate(_converted(row)))
    except (ValueError, AttributeError, OSError) as error:
        raise RecordError(f"{path} holds no trees of version 1 or 2: {error}") from error
    if changed:
        path.replace(path.with_name(f"{path.name}.v1"))
        path.with_suffix(".converted").replace(path)
    else:
        path.with_suffix(".converted").unlink()
    return changed


def _converted(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("version") != 1:
        return row
    nodes: list[dict[str, Any]] = list(row["nodes"])
    columns: dict[str, dict[int, float]] = {}
    ids = {(node["parent"], node["action"]): node["id"] for node in nodes}
    for judged in row.pop("judged", ()):
        place = judged["parent"], judged["action"]
        if place not in ids:
            ids[place] = len(nodes) + 1
            depth = 1 + (nodes[place[0] - 1]["depth"] if place[0] else 0)
            said = {name: judged[name] for name in ("parent", "action", "reply") if name in judged}
            unknown = {"observation": "", "tried": False, "source": judged["judge"]}
            nodes.append({"id": ids[place], "depth": depth, **said, **unknown})
        columns.setdefault(JUDGED + judged["judge"], {})[ids[place]] = judged["q_value"]
    values = {name: [own.get(node["id"]) for node in nodes] for name, own in columns.items()}
    if counts := row.pop("visit_counts", ()):
        values |= {"visits": [count or None for count in counts], "mcts": row["values"]}
    return row | {"version": 2, "nodes": nodes, "values": values}
