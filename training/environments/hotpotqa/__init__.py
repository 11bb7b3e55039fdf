"""HotPotQA: questions over several paragraphs, answered by search (Yang et al., 2018)."""
