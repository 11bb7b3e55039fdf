"""Decide: everything from a history to an action, without HTTP."""
