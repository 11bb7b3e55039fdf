"""Training of Q models from an agent's own exploration: environments, algorithms, jobs."""
