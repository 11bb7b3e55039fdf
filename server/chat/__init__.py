"""OpenAI's Chat Completions dialect."""
