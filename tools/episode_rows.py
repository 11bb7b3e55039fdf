r"""Per-episode rows of evaluations, compressed, from which a printed table can be recomputed.

    python -m tools.episode_rows runs/low/played/sft_greedy runs/low/played/ipr \
      --output results/episodes/low_mended.jsonl.gz

The actions are left out: the reward, the success and the tokens are what figures are made of.
"""

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from qguide.training.evaluation.records import EpisodeRow
from qguide.training.evaluation.results import Key, latest, read_episodes


def write_episodes(runs: Sequence[Path], output: Path) -> None:
    """Write the last row of each episode of these evaluations, with its run's folder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"run": str(run), **row.model_dump(mode="json", exclude={"actions"})})
        for run in runs
        for row in read_episodes(run).values()
    ]
    # Without a time in its header the file is the same whenever it is written.
    data = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
    output.write_bytes(data)


def read_written(path: Path) -> dict[str, dict[Key, EpisodeRow]]:
    """The episodes in such a file, by run."""
    rows: dict[str, list[EpisodeRow]] = defaultdict(list)
    for line in gzip.decompress(path.read_bytes()).splitlines():
        fields = json.loads(line)
        rows[fields.pop("run")].append(EpisodeRow.model_validate({**fields, "actions": ()}))
    return {run: latest(found) for run, found in rows.items()}


def main() -> None:
    """Write the file that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    write_episodes(arguments.runs, arguments.output)


if __name__ == "__main__":
    main()
