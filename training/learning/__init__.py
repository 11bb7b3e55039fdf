"""Q models without a network, learned in seconds from an agent's own episodes."""
