"""Records of the jobs in the formats of other trainers and tools."""
