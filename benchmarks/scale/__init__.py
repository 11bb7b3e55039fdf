"""Scale benchmark: a simulation of many replicas from the measured cost of one step."""
