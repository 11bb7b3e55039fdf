"""Episodes: their state between steps, their outcome, and their records."""
