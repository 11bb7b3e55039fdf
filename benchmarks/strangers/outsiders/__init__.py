"""Environments as outsiders would write them, each in the form of its own agent."""
