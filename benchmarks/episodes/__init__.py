"""Episodes benchmark: the cost of a step at different lengths of its episode."""
