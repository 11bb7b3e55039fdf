"""Features of a state and a candidate, from their words alone: no network, no torch."""
