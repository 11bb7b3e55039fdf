"""Playing methods against each other on the same tasks, and saying honestly what was seen."""
