"""Check of one GPU: contract tests, training steps and scoring at the sizes people use."""
