"""ALFWorld expert that sees only observations: its memory, search order and mistakes."""
