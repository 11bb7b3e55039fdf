"""What scoring costs: our scorer, its peers and the floor, measured side by side in one run."""
