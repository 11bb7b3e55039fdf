"""HTTP server around `qnet`; it holds no algorithms."""
