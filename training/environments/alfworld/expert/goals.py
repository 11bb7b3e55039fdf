"""Treatments that goals ask for, and the parts of a reply: shared by expert and mistakes."""

from dataclasses import dataclass

TREATMENTS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "cool", "fridge"),
}
"""Goal kind -> verb, resulting state, appliance."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One reply in parts.

    Attributes:
        seen: the part of the last observation that matters; empty at the start.
        intent: the next thing to do.
        action: the action alone.
    """

    seen: str
    intent: str
    action: str
