"""Policies, Q models and the guided step: everything from a history to an action, without HTTP."""
