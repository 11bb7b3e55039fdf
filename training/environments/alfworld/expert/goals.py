"""Treatments of objects and parts of replies, shared by the expert and its mistakes."""

from dataclasses import dataclass

TREATMENTS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "cool", "fridge"),
}
"""Verb, resulting state and appliance of each goal kind that has a treatment."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The parts of one reply.

    Attributes:
        seen: conclusion from the last observation; empty at the start.
    """

    seen: str
    intent: str
    action: str
