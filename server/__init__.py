"""The HTTP shell around `qnet`; it holds no algorithms."""
