"""Limits on what one connection may hold, send and wait for."""
