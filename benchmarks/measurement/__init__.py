"""Model shapes, workloads, timers and records shared by the benchmarks."""
