"""What the expert and its mistakes share: the treatments, and what a decision is."""

from dataclasses import dataclass

TREATMENTS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "cool", "fridge"),
}
"""Goal kind -> verb, the state it brings, the appliance."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One reply in parts.

    Attributes:
        seen: what the last observation says of the task; empty before anything was seen.
        intent: what to do about it.
        action: the action alone.
    """

    seen: str
    intent: str
    action: str
