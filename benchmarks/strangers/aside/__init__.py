"""Environments by which no learner, option or feature was chosen: they are measured at the end."""
