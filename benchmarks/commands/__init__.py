"""The command line of the benchmarks."""
