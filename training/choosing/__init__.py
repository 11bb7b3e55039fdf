"""Choices among recorded candidates of real LLMs, by rules and by a small Q model; and among Q models."""
