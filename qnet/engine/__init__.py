"""Packed inference: attention by tiles, the KV buffer and the prefix cache."""
