"""Offer rows of made-up episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qguide.qnet.records import OfferRow

GUIDED = "shop@v1"


def offer(
    depth: int = 1,
    *,
    task: str = "t",
    outcome: float = 1.0,
    q_values: Sequence[float | None] = (0.2, 0.8),
    chosen: int = 1,
    **more: Any,
) -> OfferRow:
    """One step; the candidates are called "a0", "a1", …"""
    fields: dict[str, Any] = {
        "task_id": task,
        "depth": depth,
        "candidates": [{"content": f"a{i}", "q_value": q, "count": 1} for i, q in enumerate(q_values)],
        "chosen": f"a{chosen}",
        "taken": f"a{chosen}",
        "q_model": GUIDED,
        "policy": "policy",
        "outcome_reward": outcome,
        "episode": "e",
    }
    return OfferRow.model_validate(fields | more)


def control(outcome: float, **more: Any) -> OfferRow:
    """A step without a choice."""
    return offer(outcome=outcome, q_values=(None,), chosen=0, **more)


def write_offers(folder: Path, rows: Sequence[OfferRow]) -> Path:
    """A file of offers in the folder."""
    path = folder / "offers-1.jsonl"
    path.write_text("".join(row.model_dump_json() + "\n" for row in rows))
    return path
