"""Episodes: the steps of one trajectory tied together, and what becomes of them at the end."""
