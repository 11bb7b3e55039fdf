"""From candidates to an action: sampling, scoring, selection, deadlines, perturbation."""
