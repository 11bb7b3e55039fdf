"""Search strategies that grow exploration trees, and the decisions of played episodes."""
