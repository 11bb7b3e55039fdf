"""Decision groups whose better candidate is in the task, so that a small model learns it."""

from pathlib import Path

from qguide.training.data.decision_groups import DecisionGroupsRow
from qguide.training.data.runs import JsonlWriter, RunFolder

WORDS = ("desk", "shelf")


def groups_of(folder: Path, numbers: range) -> Path:
    """Episodes of one decision: going where the task says is right."""
    with JsonlWriter(RunFolder(folder).rows) as rows:
        for number in numbers:
            asked = WORDS[number % 2]
            candidates = [
                {
                    "action": f"Action: go to {word}",
                    "count": 1,
                    "observation": "you see mug" if word == asked else "you see",
                    "reward": float(word == asked),
                    "terminated": True,
                    "valid": word == asked,
                    "continuations": [
                        {"outcome_reward": word == asked, "steps": 1, "terminated": True}
                    ],
                }
                for word in WORDS
            ]
            fields = {
                "task_id": f"t{number}",
                "kind": "go",
                "environment": "e",
                "first_observation": f"take mug from {asked}",
                "decisions": [{"candidates": candidates, "chosen": 0}],
                "source": "policy",
                "continuation": "expert",
                "seed": 0,
            }
            rows.write(DecisionGroupsRow.model_validate(fields))
    return folder
