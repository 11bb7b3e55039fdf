"""Limits on connections: their number, the size of heads, and time."""
