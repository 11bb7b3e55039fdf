"""Recorded SQL submissions of LLM agents, to compare a database engine's rewards with MySQL's."""

import json
import lzma
from pathlib import Path

from qguide.training.environments.intercode_sql.bundle import SqlSuite


def share_of_equal_rewards(suite: SqlSuite, episodes: Path) -> float:
    """Share of every fourth recorded SELECT that ran whose reward is the recorded one."""
    by_number = {int(task.id.rpartition("/")[2]): task for task in suite.tasks}
    recorded: dict[tuple[int, str], float] = {}
    for line in lzma.decompress(episodes.read_bytes()).splitlines():
        episode = json.loads(line)
        if "react" not in episode["run"]:
            recorded |= {
                (episode["task_id"], turn["action"]): max(0.0, turn["reward"])
                for turn in episode["turns"]
                if turn["valid"] and turn["action"].lower().startswith("select")
            }
    some = sorted(recorded.items())[::4]
    assert len(some) >= 1_000
    same = 0
    for (number, action), reward in some:
        playing = suite.make(by_number[number])
        playing.reset()
        same += abs(playing.step(action).reward - reward) < 0.006
        playing.close()
    return same / len(some)
