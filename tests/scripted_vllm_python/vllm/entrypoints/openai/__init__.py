"""The OpenAI-compatible one."""
