"""The formats of recordings: a table of places, and functions where that is not enough."""
