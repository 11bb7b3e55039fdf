"""Training of policies: by preference pairs, as an implicit Q, and by the values of groups."""
