"""Policies that draw candidates: local, scripted and OpenAI-compatible."""
