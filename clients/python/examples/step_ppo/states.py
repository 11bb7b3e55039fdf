"""States to act in, from exported preference pairs, for TRL (JSON lines) or verl (parquet).

python states.py pairs.jsonl states.jsonl
python states.py pairs.jsonl states.parquet
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def states_of(pairs: Path) -> Iterator[list[dict[str, Any]]]:
    """The distinct prompts of a `trl-preference` file, in order."""
    seen: set[str] = set()
    with pairs.open(encoding="utf-8") as lines:
        for line in lines:
            state: list[dict[str, Any]] = json.loads(line)["prompt"]
            if (text := json.dumps(state, sort_keys=True)) not in seen:
                seen.add(text)
                yield state


def write_states(pairs: Path, output: Path) -> int:
    """Write the states in the format that the output's name asks for; returns their number."""
    states = list(states_of(pairs))
    if output.suffix != ".parquet":
        lines = (json.dumps({"prompt": state}) + "\n" for state in states)
        output.write_text("".join(lines), encoding="utf-8")
        return len(states)

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "qguide",
            "prompt": state,
            # The reward function reads the state, because verl hands it the response alone.
            "extra_info": {"state": state, "index": number},
            "reward_model": {"style": "rule", "ground_truth": ""},
        }
        for number, state in enumerate(states)
    ]
    pq.write_table(pa.Table.from_pylist(rows), output)
    return len(states)


if __name__ == "__main__":
    written = write_states(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{written} states in {sys.argv[2]}")
