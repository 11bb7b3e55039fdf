"""Parts of several environments: ranking of texts, and files of tasks."""
