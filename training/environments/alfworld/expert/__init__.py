"""The observation-only ALFWorld expert, its memory, search order and mistakes."""
