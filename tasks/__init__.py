"""Built-in data sources, tasks and sequences of tasks."""
