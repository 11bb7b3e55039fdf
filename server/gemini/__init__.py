"""Gemini's dialect."""
