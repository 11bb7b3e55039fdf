"""Commands of the console script, one module per group."""
