"""ALFWorld engines: one in pure Python, and TextWorld in worker processes."""
