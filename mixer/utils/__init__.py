"""Text, files, YAML, lookup by name and random state: what every room needs."""
