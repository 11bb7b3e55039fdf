"""Training of an implicit Q by preference pairs: examples, log-probabilities, validation."""
