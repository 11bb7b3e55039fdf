"""Caller and token count of the request being served."""
