"""Decision groups whose better candidate is in the task, so that a small model learns it."""

from pathlib import Path

from qguide.training.data.runs import JsonlWriter, RunFolder
from tests.support.decision_groups import candidate, groups_row

WORDS = ("desk", "shelf")


def groups_of(folder: Path, numbers: range) -> Path:
    """Episodes of one decision: going where the task says is right."""
    with JsonlWriter(RunFolder(folder).rows) as rows:
        for number in numbers:
            asked = WORDS[number % 2]
            ways = [
                candidate(
                    f"Action: go to {word}",
                    (float(word == asked), 1),
                    observation="you see mug" if word == asked else "you see",
                    reward=float(word == asked),
                    terminated=True,
                    valid=word == asked,
                )
                for word in WORDS
            ]
            rows.write(groups_row((ways, 0), task_id=f"t{number}", first_observation=f"take mug from {asked}"))
    return folder
