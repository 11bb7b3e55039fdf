"""Episodes of any agent, many in parallel, with batched policies and scorers."""
