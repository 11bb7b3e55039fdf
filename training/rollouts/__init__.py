"""Episodes of any agent, many at a time, with batched policies and scorers."""
