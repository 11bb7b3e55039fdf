"""The console script: the one place that knows both the server and the training."""
