"""Workers: environments in other processes, on this machine or on those of a Ray cluster."""
