"""ALFWorld games: their files, state, statistics and generator."""
