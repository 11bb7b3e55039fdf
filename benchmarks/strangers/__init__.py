"""Environments that differ in kind, as strangers write them, and what a Q model is worth there."""
