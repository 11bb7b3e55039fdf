"""Decisions of learning while serving, measured at simulated outcomes.

python -m benchmarks.learning simulate --runs 300
"""
