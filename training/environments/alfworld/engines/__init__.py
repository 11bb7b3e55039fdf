"""ALFWorld engines: pure Python, and TextWorld in processes of its own."""
