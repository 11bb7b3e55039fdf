"""The console script's commands, one module each."""
