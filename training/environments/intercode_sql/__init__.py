"""InterCode-SQL: questions about a database, answered by queries (Yang et al., 2023)."""
