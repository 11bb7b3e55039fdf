"""Benchmark of trunks with recurrent layers."""
