"""Rollout benchmark: episodes of a hosted policy, many at once and one at a time."""
