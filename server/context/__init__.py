"""The caller and the budget of the request that a task works for."""
