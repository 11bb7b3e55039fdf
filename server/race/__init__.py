"""Games for the race of the playground."""
