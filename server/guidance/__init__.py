"""One guided step and one scored step, whatever the dialect."""
