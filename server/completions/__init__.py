"""OpenAI's Completions dialect, the one before chats."""
