"""What the expert and its mistakes share: the treatments, and what a decision is."""

TREATMENTS: dict[str, tuple[str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "clean", "sinkbasin"),
    "pick_heat_then_place_in_recep": ("heat", "hot", "microwave"),
    "pick_cool_then_place_in_recep": ("cool", "cool", "fridge"),
}
"""Goal kind -> verb, the state it brings, the appliance."""

Decision = tuple[str, str]
"""A thought and an action."""
