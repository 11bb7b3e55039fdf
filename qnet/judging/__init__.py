"""Judges: chat models that are prompted for the value of an agent's possible next turns."""
