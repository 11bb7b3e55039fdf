"""The worlds an agent acts in."""
