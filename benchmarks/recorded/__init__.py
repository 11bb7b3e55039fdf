"""Choice among what real LLMs did in one state, recorded: pages of results, without playing."""
