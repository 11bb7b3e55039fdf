"""The `qguide` console script, which combines server, training and benchmarks."""
