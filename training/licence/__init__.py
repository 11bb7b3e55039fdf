"""Licence of a Q model: its choices beside the agent's own, on held-back decisions."""
