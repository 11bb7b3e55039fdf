"""Recordings of several models on the same tasks: BFCL's results, and MINT's episodes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

AREA: Mapping[str, Any] = {
    "name": "shape.area",
    "description": "Area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "width": {"type": "integer", "description": "Width."},
            "height": {"type": "integer", "description": "Height."},
            "unit": {"type": "string", "enum": ["cm", "m"], "description": "Unit, m by default."},
        },
        "required": ["width", "height"],
    },
}


def area_question(number: int) -> str:
    """A question with two numbers."""
    return f"How large is a rectangle of {number + 2} by {number + 5} metres?"


Answer = Callable[[int], Any]


def right_call(number: int) -> Any:
    """A call as an API returns it."""
    arguments = {"width": number + 2, "height": number + 5}
    return [{"shape_area": json.dumps(arguments)}]


def right_text(number: int) -> str:
    """The same call as Python in a text."""
    return f"```python\n[shape.area(height={number + 5}, width={number + 2})]\n```"


def wrong_number(number: int) -> str:
    """A call of a number that nobody said."""
    return f"[shape.area(width={number + 2}, height={number + 77})]"


def lacking(number: int) -> str:
    """A call without an argument that is required."""
    return f"[shape.area(width={number + 2})]"


def bfcl_clone(folder: Path, answers: Mapping[str, tuple[Answer, bool]], *, tasks: int) -> None:
    """BFCL's results of August 2024: each model's answer to every task, and if it is right."""
    for model, (answer, right) in answers.items():
        name = f"{model}/gorilla_openfunctions_v1_test_simple_result.json"
        results = [{"id": f"simple_{i}", "result": answer(i)} for i in range(tasks)]
        write_lines(folder / "result" / name, results)
        counts = {"correct_count": tasks if right else 0, "total_count": tasks}
        failures = [
            {
                "id": i + 1,
                "valid": False,
                "prompt": {"id": f"simple_{i}", "question": area_question(i), "function": AREA},
            }
            for i in range(tasks)
        ]
        rows: list[Mapping[str, Any]] = [counts] if right else [counts, *failures]
        write_lines(folder / "score" / model / "simple_score.json", rows)


def mint_episodes(file: Path, models: Sequence[str], *, tasks: int) -> None:
    """Episodes of MINT: of each task every second pair of models computes it, and succeeds."""
    rows = []
    for task in range(tasks):
        for place, model in enumerate(models):
            right = (task + place // 2) % 2 == 0
            answer = f"{task * 3}" if right else "Traceback: NameError"
            history = [
                ("user", f"You are an assistant.\nTask:\nWhat is {task} times 3?\n"),
                ("assistant", f"<execute>print({task} * 3)</execute>" if right else "print(x)"),
                ("user", f"Observation:\n{answer}"),
                ("assistant", f"<solution>{task * 3}</solution>" if right else "I do not know."),
            ]
            row = {"set": "reasoning/times", "task_id": task, "model": model, "success": int(right)}
            row["history"] = [{"role": role, "content": text} for role, text in history]
            rows.append(row)
    write_lines(file, rows)


def write_lines(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One JSON object a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
